"""`bertwright attention`."""

from __future__ import annotations

from bertwright.inference.attention_plot import AttentionSettings, attention

SETTINGS = AttentionSettings
run = attention
ORDER = 15
SUMMARY = "draw the attention weights of a text"
EXAMPLE = "bertwright attention runs/mini 'The bear sleeps.' --output attention.png"
