"""`bertwright survey`."""

from __future__ import annotations

from bertwright.surveying.survey import SurveySettings, survey

SETTINGS = SurveySettings
run = survey
ORDER = 1
SUMMARY = "describe a corpus and warn about problems for pre-training"
EXAMPLE = "bertwright survey books/ wiki.txt"
