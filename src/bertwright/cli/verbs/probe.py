"""`bertwright probe`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.trials.probe_settings import ProbeSettings, check_inputs

SETTINGS = ProbeSettings
ORDER = 10
SUMMARY = "train small heads on the features of a frozen BERT"
EXAMPLE = "bertwright probe --task conll2003 --model runs/mini --run runs/ner-probe"


def run(settings: ProbeSettings) -> None:
    check_inputs(settings)
    with importing_torch():
        from bertwright.trials.probe import probe
    probe(settings)
