"""`bertwright finetune`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.finetuning.settings import FinetuneSettings, check_inputs
from bertwright.training.run_folder import resume_restarted

SETTINGS = FinetuneSettings
ORDER = 6
SUMMARY = "fine-tune a BERT on a task, or resume a run"
EXAMPLE = "bertwright finetune --task classification --train train.tsv --dev dev.tsv --model runs/mini --run runs/task"


def run(settings: FinetuneSettings) -> None:
    settings = resume_restarted(settings)
    check_inputs(settings)
    with importing_torch():
        from bertwright.finetuning.run import finetune
    finetune(settings)
