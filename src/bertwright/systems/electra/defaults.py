"""ELECTRA (Clark et al. 2020) without torch: its record and its sizes."""

from __future__ import annotations

from bertwright.systems.bert.defaults import SIZES
from bertwright.systems.registry import System

ELECTRA = System(
    name="electra",
    summary="ELECTRA (Clark et al. 2020), a BERT that finds the tokens that a small masked LM has replaced",
    folders={"electra": "bertwright.systems.electra.electra_folder:ELECTRA"},
    objectives={"replaced-tokens": "bertwright.systems.electra.replaced_tokens:ReplacedTokens"},
    sizes=SIZES,
)
