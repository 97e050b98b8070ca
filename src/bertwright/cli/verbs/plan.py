"""`bertwright plan`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.planning.plan_settings import PlanSettings

SETTINGS = PlanSettings
ORDER = 4
SUMMARY = "choose size, batch and steps for your text and hours"
EXAMPLE = "bertwright plan --text books/ wiki.txt --hours 12 --output plan.toml"


def run(settings: PlanSettings) -> None:
    with importing_torch():
        from bertwright.planning.plan import plan
    plan(settings)
