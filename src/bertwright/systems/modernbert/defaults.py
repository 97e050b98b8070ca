"""ModernBERT (Warner et al. 2024) without torch: its record and its sizes."""

from __future__ import annotations

from bertwright.systems.bert.defaults import SIZES as BERT_SIZES
from bertwright.systems.registry import System

RATIO = 1.5  # of feed-forward and hidden size in base; GeGLU has three matrices where BERT has two
# base and large: Warner et al. 2024, table 4. The smaller ones have BERT's layers, heads and hidden sizes.
SIZES = {
    **{name: size | {"intermediate_size": round(RATIO * size["hidden_size"])} for name, size in BERT_SIZES.items()},
    "base": {"num_layers": 22, "hidden_size": 768, "num_heads": 12, "intermediate_size": 1152},
    "large": {"num_layers": 28, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 2624},
}

MODERNBERT = System(
    name="modernbert",
    summary="ModernBERT (Warner et al. 2024), rotary positions and windows of attention, for up to 8,192 tokens",
    folders={"modernbert": "bertwright.systems.modernbert.modernbert_folder:MODERNBERT"},
    objectives={"modernbert-mlm": "bertwright.systems.modernbert.modernbert_objective:ModernBertMaskedLM"},
    sizes=SIZES,
)
