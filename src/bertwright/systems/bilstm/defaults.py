"""The BiLSTM-CNN-CRF of Ma & Hovy 2016 without torch: its record."""

from __future__ import annotations

from typing import Any

from bertwright.systems.registry import LadderStep, System
from bertwright.systems.word_settings import WordModel

ENCODER = "bertwright.systems.bilstm.bilstm:new_encoder"
LINEAR: dict[str, Any] = {"overrides": {"tag_head": "linear"}}
VECTORS = {"words.vectors": "vectors"}

BILSTM = System(
    name="bilstm",
    summary="BiLSTM-CNN-CRF (Ma & Hovy 2016), an LSTM of both directions on words and characters",
    folders={"bilstm": "bertwright.systems.bilstm.bilstm:FOLDER"},
    word_models={
        "bilstm": WordModel(summary="a bidirectional LSTM", encoder=ENCODER, tag_head=None),
        "bilstm-crf": WordModel(
            summary="a bidirectional LSTM with a CRF, for tagging (Ma & Hovy 2016)", encoder=ENCODER, scores_paths=True
        ),
    },
    ladder=(  # Ma & Hovy 2016, tables 3 and 6
        LadderStep(
            10, "BiLSTM, random vectors", {"architecture": "bilstm", "words": {"char_model": "none"}}, tagging=LINEAR
        ),
        LadderStep(20, "+ characters", {"architecture": "bilstm"}, tagging=LINEAR),
        LadderStep(30, "+ CRF", {"architecture": "bilstm-crf"}, published=80.76, tasks="tagging"),
        LadderStep(
            40, "+ word vectors", {"architecture": "bilstm"}, VECTORS, ("vectors",), published=91.21,
            tagging={"architecture": "bilstm-crf"},
        ),
    ),
)  # fmt: skip
