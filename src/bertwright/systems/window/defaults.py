"""The window network of Collobert et al. 2011 without torch: its record."""

from __future__ import annotations

from bertwright.systems.registry import LadderStep, System
from bertwright.systems.word_settings import WordModel

WINDOW = System(
    name="window",
    summary="window network (Collobert et al. 2011), a layer on five words",
    folders={"window": "bertwright.systems.window.window:FOLDER"},
    word_models={
        "window": WordModel(
            summary="a layer on five words, in tagging with a CRF (Collobert et al. 2011)",
            encoder="bertwright.systems.window.window:new_encoder",
            words={"word_size": 50},
        )
    },
    ladder=(LadderStep(0, "window network", {"architecture": "window"}, published=81.47, tasks="tagging"),),
)
