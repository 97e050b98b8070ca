"""`bertwright predict`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.inference.predict_settings import PredictSettings, check_inputs

SETTINGS = PredictSettings
ORDER = 9
SUMMARY = "label texts with a fine-tuned model"
EXAMPLE = "bertwright predict runs/task --inputs new.csv --keep-columns id --output predictions.csv"


def run(settings: PredictSettings) -> None:
    check_inputs(settings)
    with importing_torch():
        from bertwright.inference.predict import predict
    predict(settings)
