"""`bertwright evaluate`."""

from __future__ import annotations

from bertwright.inference.evaluate import EvaluateSettings, evaluate

SETTINGS = EvaluateSettings
run = evaluate
ORDER = 8
SUMMARY = "score a fine-tuned model on labeled files"
EXAMPLE = "bertwright evaluate runs/task test.tsv --output scores.json"
