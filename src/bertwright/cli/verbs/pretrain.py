"""`bertwright pretrain`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.pretraining.settings import PretrainSettings, check_inputs
from bertwright.training.run_folder import resume_restarted

SETTINGS = PretrainSettings
ORDER = 5
SUMMARY = "pre-train a BERT on a token store, or resume a run"
EXAMPLE = "bertwright pretrain --config mini --store store --run runs/mini"


def run(settings: PretrainSettings) -> None:
    settings = resume_restarted(settings)
    check_inputs(settings)
    with importing_torch():
        from bertwright.pretraining.run import pretrain
    pretrain(settings)
