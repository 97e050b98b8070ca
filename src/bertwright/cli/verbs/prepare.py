"""`bertwright prepare`."""

from __future__ import annotations

from bertwright.pretraining.prepare import PrepareSettings, prepare

SETTINGS = PrepareSettings
run = prepare
ORDER = 3
SUMMARY = "tokenize text into a token store, for pre-training"
EXAMPLE = "bertwright prepare books/ wiki.txt --vocabulary vocabulary --store store --held-out 0.01"
