"""CoVe (McCann et al. 2017) without torch: its record, and sizes and settings of its translation model."""

from __future__ import annotations

from typing import Any

from bertwright.systems.bilstm.defaults import BASES
from bertwright.systems.registry import LadderStep, System, TranslationRecord
from bertwright.systems.word_settings import FrozenModel, WordModel

# Size of word vectors, and of states (both directions together). base: section 3 of the paper.
SIZES = {"tiny": {"word_size": 100, "hidden_size": 256}, "base": {"word_size": 300, "hidden_size": 600}}
TRANSLATION_MODEL = FrozenModel(
    "translation_model",
    "bertwright.systems.cove.mt_lstm_folder:load_translation_encoder",
    "train-translation --architecture mt-lstm",
)
WORDS = {"lm_layers": "top", "lm_places": [0]}
INPUTS = {"words.vectors": "vectors", "words.translation_model": "cove"}


def translation_defaults(size: str, warmup_steps: int) -> dict[str, Any]:
    """Return the settings with which the translation model is trained, as a TOML table."""
    optimizer = {
        "learning_rate": 2e-3,
        "warmup_ratio": 0.02,
        "warmup_steps": None,
        "schedule": "linear",
        "beta2": 0.999,
        "max_grad_norm": 5.0,
    }
    return {"batch_tokens": 2_000, "label_smoothing": 0.0, "average": 1, "optimizer": optimizer}


COVE = System(
    name="cove",
    summary="CoVe (McCann et al. 2017), the encoder of an LSTM that translates",
    sizes=SIZES,
    word_models={
        "cove": WordModel(
            summary="two layers, with the states of --translation-model before them (McCann et al. 2017)",
            model_type="bilstm",
            words=WORDS | {"lstm_layers": 2},
            words_with={"vectors": {"unknown_words": "pretrained"}},
            frozen=(TRANSLATION_MODEL,),
        )
    },
    translation={
        "mt-lstm": TranslationRecord(
            summary="two bidirectional LSTM layers over the words of the source, an LSTM decoder with attention; "
            "trained by Adam with 2e-3, linear, 2,000 tokens per step, clipping at 5, without label smoothing",
            model_type="mt-lstm",
            sizes=SIZES,
            defaults=translation_defaults,
            new="bertwright.systems.cove.mt_lstm_folder:new_system",
            write="bertwright.systems.cove.mt_lstm_folder:write_system",
            load="bertwright.systems.cove.mt_lstm_folder:load_system",
            reads_words=True,
        )
    },
    ladder=(LadderStep(60, "CoVe", {"architecture": "cove"}, INPUTS, ("cove",), over=BASES),),
)
