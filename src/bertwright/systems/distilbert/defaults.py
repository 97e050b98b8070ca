"""DistilBERT (Sanh et al. 2019) without torch: its record and its sizes."""

from __future__ import annotations

from bertwright.systems.bert.defaults import SIZES as BERT_SIZES
from bertwright.systems.registry import System

SIZES = {name: size | {"num_layers": size["num_layers"] // 2} for name, size in BERT_SIZES.items()}  # half the layers

DISTILBERT = System(
    name="distilbert",
    summary="DistilBERT (Sanh et al. 2019), a BERT of half the layers without segments and pooler",
    folders={"distilbert": "bertwright.systems.distilbert.distilbert_folder:DISTILBERT"},
    objectives={"distilbert-mlm": "bertwright.systems.distilbert.distilbert_objective:DistilBertMaskedLM"},
    sizes=SIZES,
)
