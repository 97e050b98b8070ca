"""BERT, whole: raw text to vocabulary, to pre-training, to fine-tuned tasks.

A trained model is two calls:

    model = bertwright.load("run/model")
    model.fill_mask("Paris is the [MASK] of France.")

A fine-tuned one answers with `classify`, `choose`, `tag` or `answer`; every one makes vectors with `embed`.

The stages that lead to one are functions of a settings record, the same as the verbs of the command line; they print
what the verbs print, or warnings alone with `Console(quiet=True)` of `rich` as their second argument:

    from pathlib import Path

    import bertwright
    from bertwright import CorpusSettings, FinetuneSettings, LearnSettings, PretrainSettings
    from bertwright import StoreSettings, SurveySettings, TaskSettings

    text = CorpusSettings(inputs=("books/", "wiki.txt"))
    bertwright.survey(SurveySettings(text))
    bertwright.learn_vocabulary(LearnSettings(text, output=Path("vocabulary")))
    bertwright.prepare(StoreSettings(text, vocabulary="vocabulary", store=Path("store")))
    bertwright.pretrain(PretrainSettings(run=Path("run"), store=Path("store")))

    task = TaskSettings("classification", train=("train.tsv",), dev=("dev.tsv",))
    bertwright.finetune(FinetuneSettings(run=Path("tuned"), task=task, model="run"))

Every setting is explained under its field, and by `bertwright VERB --help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertwright.corpus.inputs import CorpusSettings
    from bertwright.estimators import BertClassifier, BertRegressor, BertTagger
    from bertwright.inference.model import Bert, load
    from bertwright.pretraining.batches import DataSettings
    from bertwright.runs.corpus import LearnSettings, StoreSettings, SurveySettings, learn_vocabulary, prepare, survey
    from bertwright.runs.evaluate import EvaluateSettings, evaluate
    from bertwright.runs.finetune import finetune
    from bertwright.runs.grid import grid
    from bertwright.runs.predict import PredictSettings, predict
    from bertwright.runs.pretrain import pretrain
    from bertwright.runs.probe import ProbeSettings, probe
    from bertwright.runs.recipe import LongPhase, ModelSettings, PretrainSettings
    from bertwright.runs.trials import GridSettings
    from bertwright.runs.tuning import FinetuneSettings
    from bertwright.tasks.presets import Overrides, TaskSettings
    from bertwright.tokenstore.build import PrepareSettings
    from bertwright.training.device import DeviceSettings
    from bertwright.training.optimizer import OptimizerSettings
    from bertwright.vocabulary.wordpiece import VocabularySettings

__all__ = [
    "Bert",
    "BertClassifier",
    "BertRegressor",
    "BertTagger",
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
    "Overrides",
    "PredictSettings",
    "PrepareSettings",
    "PretrainSettings",
    "ProbeSettings",
    "StoreSettings",
    "SurveySettings",
    "TaskSettings",
    "VocabularySettings",
    "evaluate",
    "finetune",
    "grid",
    "learn_vocabulary",
    "load",
    "predict",
    "prepare",
    "pretrain",
    "probe",
    "survey",
]

# Imported on first use: torch takes seconds, which `bertwright --help` and the corpus stages need not wait for.
HOMES = {
    "corpus.inputs": ("CorpusSettings",),
    "estimators": (
        "BertClassifier",
        "BertRegressor",
        "BertTagger",
    ),
    "inference.model": (
        "Bert",
        "load",
    ),
    "pretraining.batches": ("DataSettings",),
    "runs.corpus": (
        "LearnSettings",
        "StoreSettings",
        "SurveySettings",
        "learn_vocabulary",
        "prepare",
        "survey",
    ),
    "runs.evaluate": ("EvaluateSettings", "evaluate"),
    "runs.finetune": ("finetune",),
    "runs.grid": ("grid",),
    "runs.predict": ("PredictSettings", "predict"),
    "runs.pretrain": ("pretrain",),
    "runs.probe": (
        "ProbeSettings",
        "probe",
    ),
    "runs.recipe": (
        "LongPhase",
        "ModelSettings",
        "PretrainSettings",
    ),
    "runs.trials": ("GridSettings",),
    "runs.tuning": ("FinetuneSettings",),
    "tasks.presets": (
        "Overrides",
        "TaskSettings",
    ),
    "tokenstore.build": ("PrepareSettings",),
    "training.device": ("DeviceSettings",),
    "training.optimizer": ("OptimizerSettings",),
    "vocabulary.wordpiece": ("VocabularySettings",),
}


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
