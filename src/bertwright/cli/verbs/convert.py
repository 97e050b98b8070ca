"""`bertwright convert`."""

from __future__ import annotations

from bertwright.inference.convert import ConvertSettings, convert

SETTINGS = ConvertSettings
run = convert
ORDER = 18
SUMMARY = "write a model in the format of Hugging Face, or of Google"
EXAMPLE = "bertwright convert uncased_L-12_H-768_A-12 bert-base --lowercase True"
