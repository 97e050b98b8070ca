"""The BiLSTM-CNN-CRF of Ma & Hovy 2016 without torch: its record."""

from __future__ import annotations

from typing import Any

from bertwright.systems.registry import LadderStep, System
from bertwright.systems.word_settings import WordModel

LINEAR: dict[str, Any] = {"overrides": {"tag_head": "linear"}}
CRF = {"architecture": "bilstm-crf"}
WORDS = {"char_model": "none", "lstm_layers": 2}
CHARACTERS: dict[str, Any] = {"architecture": "bilstm", "words": {"lstm_layers": 2}}
BASES = ("word vectors + characters", "+ characters")  # steps to which frozen models are added
VECTORS = {"words.vectors": "vectors"}

BILSTM = System(
    name="bilstm",
    summary="BiLSTM-CNN-CRF (Ma & Hovy 2016), an LSTM of both directions on words and characters",
    folders={"bilstm": "bertwright.systems.bilstm.bilstm:FOLDER"},
    word_models={
        "bilstm": WordModel(summary="a bidirectional LSTM", model_type="bilstm", tag_head=None),
        "bilstm-crf": WordModel(
            summary="a bidirectional LSTM with a CRF, for tagging (Ma & Hovy 2016)",
            model_type="bilstm",
            scores_paths=True,
        ),
    },
    ladder=(  # Ma & Hovy 2016, tables 3 and 6
        LadderStep(10, "BiLSTM", {"architecture": "bilstm", "words": WORDS}, tagging=LINEAR, over=()),
        LadderStep(15, "+ CRF", {"architecture": "bilstm-crf", "words": WORDS}, tasks="tagging"),
        LadderStep(20, "+ characters", CHARACTERS, tagging=CRF, published={"conll2003": 80.76}),
        LadderStep(
            25, "word vectors", {"architecture": "bilstm", "words": WORDS}, VECTORS, ("vectors",), tagging=CRF,
            over=("+ CRF", "BiLSTM"),
        ),
        LadderStep(
            30, "word vectors + characters", CHARACTERS, VECTORS, ("vectors",), tagging=CRF,
            published={"conll2003": 91.21},
        ),
    ),
)  # fmt: skip
