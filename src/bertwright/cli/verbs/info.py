"""`bertwright info`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.inference.info_settings import InfoSettings

SETTINGS = InfoSettings
ORDER = 17
SUMMARY = "describe a model, vocabulary, store or run folder"
EXAMPLE = "bertwright info runs/mini"


def run(settings: InfoSettings) -> None:
    with importing_torch():
        from bertwright.inference.info import info
    info(settings)
