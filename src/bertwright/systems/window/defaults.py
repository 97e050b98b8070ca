"""The window network of Collobert et al. 2011 without torch: its record."""

from __future__ import annotations

from bertwright.systems.registry import LadderStep, System
from bertwright.systems.word_settings import WordModel

TABLE = {"architecture": "window", "words": {"char_model": "none"}}

WINDOW = System(
    name="window",
    summary="window network (Collobert et al. 2011), a layer on five words",
    folders={"window": "bertwright.systems.window.window:FOLDER"},
    word_models={
        "window": WordModel(
            summary="a layer on five words, in tagging with a CRF (Collobert et al. 2011)",
            model_type="window",
            words={"word_size": 50},
        )
    },
    ladder=(  # tables 5 and 8
        LadderStep(0, "window network", TABLE, published={"conll2003": 81.47}, tasks="tagging"),
        LadderStep(
            5, "window network, word vectors", TABLE, {"words.vectors": "vectors"}, ("vectors",),
            published={"conll2003": 88.67}, tasks="tagging",
        ),
    ),
)  # fmt: skip
