"""Static vectors of tokens without torch: their record."""

from __future__ import annotations

from bertwright.systems.registry import System

STATIC = System(
    name="static",
    summary="a vector per token, computed from a model of text vectors (model2vec)",
    folders={"static": "bertwright.systems.static.static_encoder:FOLDER"},
)
