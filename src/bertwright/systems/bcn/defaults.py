"""The biattentive classification network of McCann et al. 2017 without torch: its record."""

from __future__ import annotations

from bertwright.systems.cove.defaults import INPUTS, TRANSLATION_MODEL, WORDS
from bertwright.systems.elmo.defaults import INPUTS as ELMO_INPUTS
from bertwright.systems.elmo.defaults import LANGUAGE_MODEL, MIX
from bertwright.systems.registry import LadderStep, System
from bertwright.systems.word_settings import WordModel

VECTORS = {"words.vectors": "vectors"}

BCN = System(
    name="bcn",
    summary="biattentive classification network (McCann et al. 2017), on CoVe or word vectors",
    folders={"bcn": "bertwright.systems.bcn.bcn:FOLDER"},
    word_models={
        "bcn": WordModel(
            summary="biattention between two texts, for sentences, pairs and questions (McCann et al. 2017)",
            model_type="bcn",
            words=WORDS | {"lstm_size": 300, "char_model": "none"},
            words_with={
                "vectors": {"unknown_words": "pretrained", "freeze_vectors": True},
                "language_model": MIX,
            },
            frozen=(TRANSLATION_MODEL, LANGUAGE_MODEL),
            needs_frozen=False,
            answers_questions=True,
        )
    },
    ladder=(
        LadderStep(70, "BCN", {"architecture": "bcn"}, VECTORS, ("vectors",), tasks="texts", over=()),
        LadderStep(
            80, "BCN + CoVe", {"architecture": "bcn"}, INPUTS, ("vectors", "cove"), {"trec6": 95.8}, ("BCN",), "texts"
        ),
        LadderStep(
            85, "BCN + ELMo", {"architecture": "bcn"}, ELMO_INPUTS, ("vectors", "elmo"), over=("BCN",), tasks="texts"
        ),
    ),
)
