"""ALBERT (Lan et al. 2020) without torch: its record."""

from __future__ import annotations

from bertwright.systems.bert.defaults import SIZES
from bertwright.systems.registry import System

ALBERT = System(
    name="albert",
    summary="ALBERT (Lan et al. 2020), a BERT whose layers share their weights, on small embeddings",
    folders={"albert": "bertwright.systems.albert.albert_folder:ALBERT"},
    objectives={"albert-mlm": "bertwright.systems.albert.albert_objective:AlbertMaskedLM"},
    sizes=SIZES,
)
