"""`bertwright glue-submission`."""

from __future__ import annotations

from bertwright.inference.glue_submission import SubmissionSettings, submission

SETTINGS = SubmissionSettings
run = submission
ORDER = 12
SUMMARY = "write predictions for GLUE's server"
EXAMPLE = "bertwright glue-submission cola=runs/cola sst2=runs/sst2 --data glue --output glue.zip --fill-missing"
