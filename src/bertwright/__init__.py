"""BERT, whole: raw text to vocabulary, to pre-training, to filled masks.

A trained model is two calls:

    model = bertwright.load("run/model")
    model.fill_mask("Paris is the [MASK] of France.")

The stages that lead to one are functions of a settings record, the same as the verbs of the command line; they print
what the verbs print, or nothing with `Console(quiet=True)` of `rich` as their second argument:

    from pathlib import Path

    import bertwright
    from bertwright import CorpusSettings, LearnSettings, PretrainSettings, StoreSettings, SurveySettings

    text = CorpusSettings(inputs=("books/", "wiki.txt"))
    bertwright.survey(SurveySettings(text))
    bertwright.learn_vocabulary(LearnSettings(text, output=Path("vocabulary")))
    bertwright.prepare(StoreSettings(text, vocabulary="vocabulary", store=Path("store")))
    bertwright.pretrain(PretrainSettings(run=Path("run"), store=Path("store")))

Every setting is explained under its field, and by `bertwright VERB --help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertwright.corpus.inputs import CorpusSettings
    from bertwright.inference.model import Bert, load
    from bertwright.pretraining.batches import DataSettings
    from bertwright.runs.corpus import (
        LearnSettings,
        StoreSettings,
        SurveySettings,
        learn_vocabulary,
        prepare,
        survey,
    )
    from bertwright.runs.pretrain import pretrain
    from bertwright.runs.recipe import LongPhase, ModelSettings, PretrainSettings
    from bertwright.tokenstore.build import PrepareSettings
    from bertwright.training.device import DeviceSettings
    from bertwright.training.optimizer import OptimizerSettings
    from bertwright.vocabulary.wordpiece import VocabularySettings

__all__ = [
    "Bert",
    "CorpusSettings",
    "DataSettings",
    "DeviceSettings",
    "LearnSettings",
    "LongPhase",
    "ModelSettings",
    "OptimizerSettings",
    "PrepareSettings",
    "PretrainSettings",
    "StoreSettings",
    "SurveySettings",
    "VocabularySettings",
    "learn_vocabulary",
    "load",
    "prepare",
    "pretrain",
    "survey",
]

# Imported on first use: torch takes seconds, which `bertwright --help` and the corpus stages need not wait for.
HOMES = {
    "corpus.inputs": ("CorpusSettings",),
    "inference.model": ("Bert", "load"),
    "pretraining.batches": ("DataSettings",),
    "runs.corpus": ("LearnSettings", "StoreSettings", "SurveySettings", "learn_vocabulary", "prepare", "survey"),
    "runs.pretrain": ("pretrain",),
    "runs.recipe": ("LongPhase", "ModelSettings", "PretrainSettings"),
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
