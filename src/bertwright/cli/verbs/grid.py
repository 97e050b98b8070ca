"""`bertwright grid`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.trials.grid_settings import GridSettings, check_inputs

SETTINGS = GridSettings
ORDER = 7
SUMMARY = "fine-tune with several settings and seeds"
EXAMPLE = "bertwright grid --task mrpc --model runs/mini --run runs/mrpc-grid --seeds 5 --dry-run"


def run(settings: GridSettings) -> None:
    check_inputs(settings)
    with importing_torch():
        from bertwright.trials.grid import grid
    grid(settings)
