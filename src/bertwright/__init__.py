"""BERT, whole: raw text to vocabulary, to pre-training, to fine-tuned tasks.

A trained model is two calls:

    model = bertwright.load("run/model")
    model.fill_mask("Paris is the [MASK] of France.")

A pre-trained model has `fill_mask` and `next_sentence`, a fine-tuned one `classify`, `choose`, `tag` or `answer`. Every
model has `embed` for text vectors, `features` for word vectors, and `attention`.

The functions that train one take a settings object each. They do the same as the commands of the command line and print
the same; with `rich.console.Console(quiet=True)` as second argument they only emit Python warnings:

    from pathlib import Path

    import bertwright
    from bertwright import CorpusSettings, FinetuneSettings, LearnSettings, PretrainSettings
    from bertwright import PrepareSettings, SurveySettings, TaskSettings

    text = CorpusSettings(inputs=("books/", "wiki.txt"))
    bertwright.survey(SurveySettings(text))
    bertwright.learn_vocabulary(LearnSettings(text, output=Path("vocabulary")))
    bertwright.prepare(PrepareSettings(text, vocabulary="vocabulary", store=Path("store")))
    bertwright.pretrain(PretrainSettings(run=Path("run"), store=Path("store")))

    task = TaskSettings("classification", train=("train.tsv",), dev=("dev.tsv",))
    bertwright.finetune(FinetuneSettings(run=Path("tuned"), task=task, model="run"))

`bertwright COMMAND --help` and the docstrings of the fields explain every setting.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertwright.commands.evaluate import EvaluateSettings, evaluate
    from bertwright.commands.finetune.run import finetune
    from bertwright.commands.finetune.settings import FinetuneSettings, TuningSettings
    from bertwright.commands.grid.run import grid
    from bertwright.commands.grid.settings import GridSettings
    from bertwright.commands.plan.run import plan
    from bertwright.commands.plan.settings import PlanSettings
    from bertwright.commands.predict.run import predict
    from bertwright.commands.predict.settings import PredictSettings
    from bertwright.commands.prepare import PrepareSettings, prepare
    from bertwright.commands.pretrain.run import pretrain
    from bertwright.commands.pretrain.settings import LongPhase, ModelSettings, PretrainSettings
    from bertwright.commands.probe.run import probe
    from bertwright.commands.probe.settings import ProbeSettings
    from bertwright.commands.survey import SurveySettings, survey
    from bertwright.commands.vocabulary import LearnSettings, learn_vocabulary
    from bertwright.corpus.documents import CorpusSettings
    from bertwright.estimators import BertClassifier, BertRegressor, BertTagger
    from bertwright.inference.model import Bert, load
    from bertwright.pretraining.data import DataSettings
    from bertwright.tasks.presets import TaskOptions, TaskSettings
    from bertwright.tokenstore.build import BuildSettings
    from bertwright.training.optimizer import OptimizerSettings
    from bertwright.training.settings import DeviceSettings
    from bertwright.vocabulary.trainer import VocabularySettings

__all__ = [
    "Bert",
    "BertClassifier",
    "BertRegressor",
    "BertTagger",
    "BuildSettings",
    "CorpusSettings",
    "DataSettings",
    "DeviceSettings",
    "EvaluateSettings",
    "FinetuneSettings",
    "GridSettings",
    "LearnSettings",
    "LongPhase",
    "ModelSettings",
    "OptimizerSettings",
    "PlanSettings",
    "PredictSettings",
    "PrepareSettings",
    "PretrainSettings",
    "ProbeSettings",
    "SurveySettings",
    "TaskOptions",
    "TaskSettings",
    "TuningSettings",
    "VocabularySettings",
    "evaluate",
    "finetune",
    "grid",
    "learn_vocabulary",
    "load",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "probe",
    "survey",
]

# Modules are imported on first use: torch takes seconds to import, and `bertwright --help` does not need it.
HOMES = {
    "corpus.documents": ("CorpusSettings",),
    "estimators": (
        "BertClassifier",
        "BertRegressor",
        "BertTagger",
    ),
    "inference.model": (
        "Bert",
        "load",
    ),
    "pretraining.data": ("DataSettings",),
    "commands.survey": ("SurveySettings", "survey"),
    "commands.vocabulary": ("LearnSettings", "learn_vocabulary"),
    "commands.plan.run": ("plan",),
    "commands.plan.settings": ("PlanSettings",),
    "commands.prepare": ("PrepareSettings", "prepare"),
    "commands.evaluate": ("EvaluateSettings", "evaluate"),
    "commands.finetune.run": ("finetune",),
    "commands.grid.run": ("grid",),
    "commands.predict.run": ("predict",),
    "commands.predict.settings": ("PredictSettings",),
    "commands.pretrain.run": ("pretrain",),
    "commands.probe.run": ("probe",),
    "commands.probe.settings": ("ProbeSettings",),
    "commands.pretrain.settings": (
        "LongPhase",
        "ModelSettings",
        "PretrainSettings",
    ),
    "commands.grid.settings": ("GridSettings",),
    "commands.finetune.settings": ("FinetuneSettings", "TuningSettings"),
    "tasks.presets": (
        "TaskOptions",
        "TaskSettings",
    ),
    "tokenstore.build": ("BuildSettings",),
    "training.settings": ("DeviceSettings",),
    "training.optimizer": ("OptimizerSettings",),
    "vocabulary.trainer": ("VocabularySettings",),
}

SPIN_COUNT = 2_000  # iterations of a loop after which an OpenMP thread that waits for others sleeps

# By default, waiting OpenMP threads spin for milliseconds. If another process is busy, they take the CPU from the
# thread that they wait for (bench/busy_machine.py). This must be set before torch loads OpenMP.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ) and "torch" not in sys.modules:
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)  # libgomp: torch on Linux
    os.environ["KMP_BLOCKTIME"] = "1"  # libomp: torch on macOS; milliseconds


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
