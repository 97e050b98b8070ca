"""`bertwright translate`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.translation.settings import TranslateSettings, check_translation_inputs

SETTINGS = TranslateSettings
ORDER = 20
SUMMARY = "translate texts, and score translations"
EXAMPLE = "bertwright translate runs/en-de --inputs test.en --output test.de.txt --references test.de"


def run(settings: TranslateSettings) -> None:
    check_translation_inputs(settings)
    with importing_torch():
        from bertwright.translation.translator import translate
    translate(settings)
