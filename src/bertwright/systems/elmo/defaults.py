"""ELMo and TagLM (Peters et al. 2018, 2017) without torch: their record and the sizes of the language model."""

from __future__ import annotations

from typing import Any

from bertwright.systems.bilstm.defaults import BASES
from bertwright.systems.registry import LadderStep, System
from bertwright.systems.word_settings import FrozenModel, WordModel

Filters = tuple[tuple[int, int], ...]
FILTERS: Filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES: dict[str, dict[str, Any]] = {  # named sizes: small, medium and base have been released by AllenNLP
    "tiny": {"filters": FILTERS[:3], "num_highway": 1, "projection_size": 64, "cell_size": 256},
    "mini": {
        "filters": ((1, 16), (2, 16), (3, 32), (4, 64), (5, 128)),
        "num_highway": 1,
        "projection_size": 128,
        "cell_size": 512,
    },
    "small": {"num_highway": 1, "projection_size": 128, "cell_size": 1024},
    "medium": {"num_highway": 1, "projection_size": 256, "cell_size": 2048},
    "base": {},
}
LANGUAGE_MODEL = FrozenModel(
    "language_model",
    "bertwright.systems.elmo.elmo:load_language_model",
    "pretrain --architecture elmo",
    reads_bytes=True,
)
# Section 3.2: a small penalty leaves the weights of the mix free.
MIX: dict[str, Any] = {"lm_layers": "mix", "lm_mix_penalty": 1e-3}
INPUTS = {"words.vectors": "vectors", "words.language_model": "elmo"}

ELMO = System(
    name="elmo",
    summary="ELMo (Peters et al. 2018), LSTMs of both directions on the characters of words",
    folders={"elmo": "bertwright.systems.elmo.elmo:FOLDER"},
    objectives={"bilm": "bertwright.systems.elmo.elmo_objective:BidirectionalLanguageModel"},
    sizes=SIZES,
    word_models={
        "taglm": WordModel(
            summary="two layers, with the last states of --language-model after the first one (Peters et al. 2017)",
            model_type="bilstm",
            words={"lstm_layers": 2, "lm_layers": "top", "lm_places": [1]},
            frozen=(LANGUAGE_MODEL,),
        ),
        "elmo": WordModel(
            summary="two layers, with a mean of all layers of --language-model before them (Peters et al. 2018)",
            model_type="bilstm",
            words={"lstm_layers": 2, "lm_places": [0], **MIX},
            frozen=(LANGUAGE_MODEL,),
        ),
    },
    ladder=(
        LadderStep(
            50, "TagLM", {"architecture": "taglm"}, INPUTS, ("elmo",), published={"conll2003": 91.93}, over=BASES
        ),
        LadderStep(65, "ELMo", {"architecture": "elmo"}, INPUTS, ("elmo",), published={"conll2003": 92.22}, over=BASES),
    ),
)
