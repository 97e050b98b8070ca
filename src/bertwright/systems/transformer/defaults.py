"""The Transformer of Vaswani et al. 2017 without torch: its record, its sizes and its learning rate."""

from __future__ import annotations

from typing import Any

from bertwright.systems.registry import System, TranslationRecord

# Layers of each side, hidden size, heads, feed-forward size, dropout.
# base and big: table 3 of the paper. tiny: the Multi30k model of Wu et al. 2021 (arXiv 2105.14462).
NAMES = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "dropout")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": dict(zip(NAMES, (4, 128, 4, 256, 0.3), strict=True)),
    "base": dict(zip(NAMES, (6, 512, 8, 2048, 0.1), strict=True)),
    "big": dict(zip(NAMES, (6, 1024, 16, 4096, 0.3), strict=True)),
}


def translation_defaults(size: str, warmup_steps: int) -> dict[str, Any]:
    """Return the learning rate of section 5.3, as a TOML table; nothing for a size that is reported elsewhere."""
    if size not in SIZES:
        return {}
    return {"optimizer": {"learning_rate": (SIZES[size]["hidden_size"] * max(warmup_steps, 1)) ** -0.5}}


TRANSFORMER = System(
    name="transformer",
    summary="Transformer (Vaswani et al. 2017), an encoder and a decoder that translate",
    sizes=SIZES,
    translation={
        "transformer": TranslationRecord(
            summary="the Transformer of Vaswani et al. 2017",
            model_type="marian",
            sizes=SIZES,
            defaults=translation_defaults,
            new="bertwright.systems.transformer.marian:new_system",
            write="bertwright.systems.transformer.marian:write_system",
            load="bertwright.systems.transformer.marian:load_system",
        )
    },
)
