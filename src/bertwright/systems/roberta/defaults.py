"""RoBERTa (Liu et al. 2019), CamemBERT and XLM-R without torch: their record."""

from __future__ import annotations

from bertwright.systems.bert.defaults import SIZES
from bertwright.systems.registry import System

FOLDERS = "bertwright.systems.roberta.roberta_folder"

ROBERTA = System(
    name="roberta",
    summary="RoBERTa (Liu et al. 2019), BERT's layers without segments, on byte pairs or pieces of SentencePiece",
    folders={
        "roberta": f"{FOLDERS}:ROBERTA",
        "xlm-roberta": f"{FOLDERS}:XLM_ROBERTA",
        "camembert": f"{FOLDERS}:CAMEMBERT",
    },
    objectives={"roberta-mlm": "bertwright.systems.roberta.roberta_objective:RobertaMaskedLM"},
    sizes=SIZES,
)
