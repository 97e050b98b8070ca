"""`bertwright embed`."""

from __future__ import annotations

from bertwright.inference.embed import EmbedSettings, embed

SETTINGS = EmbedSettings
run = embed
ORDER = 16
SUMMARY = "turn texts into vectors"
EXAMPLE = "bertwright embed runs/mini --inputs texts.txt --output vectors.npy"
