"""`bertwright train-translation`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.translation.settings import TrainTranslationSettings, check_training_inputs

SETTINGS = TrainTranslationSettings
ORDER = 19
SUMMARY = "train a translation model, or resume a run"
EXAMPLE = (
    "bertwright train-translation --train-source train.en --train-target train.de --dev-source dev.en "
    "--dev-target dev.de --run runs/en-de"
)


def run(settings: TrainTranslationSettings) -> None:
    check_training_inputs(settings)
    with importing_torch():
        from bertwright.translation.run import train_translation
    train_translation(settings)
