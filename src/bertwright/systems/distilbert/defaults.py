"""DistilBERT (Sanh et al. 2019) without torch: its record."""

from __future__ import annotations

from bertwright.systems.registry import System

DISTILBERT = System(
    name="distilbert",
    summary="DistilBERT (Sanh et al. 2019), a BERT of half the layers without segments and pooler",
    folders={"distilbert": "bertwright.systems.distilbert.distilbert_folder:DISTILBERT"},
)
