"""MPNet (Song et al. 2020) without torch: its record."""

from __future__ import annotations

from bertwright.systems.bert.defaults import SIZES
from bertwright.systems.registry import System

MPNET = System(
    name="mpnet",
    summary="MPNet (Song et al. 2020), RoBERTa's network with a bias of attention by the distance of tokens",
    folders={"mpnet": "bertwright.systems.mpnet.mpnet_folder:MPNET"},
    objectives={"mpnet-mlm": "bertwright.systems.mpnet.mpnet_objective:MpnetMaskedLM"},
    sizes=SIZES,
)
