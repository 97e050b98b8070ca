"""ELECTRA (Clark et al. 2020) without torch: its record."""

from __future__ import annotations

from bertwright.systems.registry import System

ELECTRA = System(
    name="electra",
    summary="ELECTRA (Clark et al. 2020), a BERT trained to find the tokens that a small masked LM has replaced",
    folders={"electra": "bertwright.systems.electra.electra_folder:ELECTRA"},
)
