"""ULMFiT (Howard & Ruder 2018) without torch: its record, its sizes and its settings of fine-tuning."""

from __future__ import annotations

from typing import Any

from bertwright.systems.registry import FinetuneRequest, LadderStep, System

FINETUNE_RATE = 0.01  # section 4.1
ACTIVATION_PENALTY = 2.0  # α of activation regularization
SLOWNESS_PENALTY = 1.0  # β of temporal activation regularization
LAYERWISE_DECAY = 0.385  # 1 / 2.6 (section 3.2)
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"embedding_size": 64, "lstm_size": 128, "num_layers": 2},
    "mini": {"embedding_size": 128, "lstm_size": 256, "num_layers": 2},
    "small": {"embedding_size": 200, "lstm_size": 400, "num_layers": 3},
    "base": {},
}


def finetune_defaults(request: FinetuneRequest) -> dict[str, Any]:
    """Return the settings with which ULMFiT is fine-tuned (sections 3.2, 3.3, 4.1), as a TOML table."""
    optimizer = {
        "learning_rate": FINETUNE_RATE,
        "schedule": "slanted-triangular",
        "warmup_ratio": 0.1,
        "beta1": 0.7,
        "beta2": 0.99,
        "weight_decay": 0.0,
    }
    tuning = {"layerwise_lr_decay": LAYERWISE_DECAY, "unfreeze": "gradual"}
    return {"epochs": 10.0, "batch_size": 64, "optimizer": optimizer, "tuning": tuning}


ULMFIT = System(
    name="ulmfit",
    summary="ULMFiT (Howard & Ruder 2018), an AWD-LSTM on words",
    folders={"awd-lstm": "bertwright.systems.ulmfit.awd_lstm:FOLDER"},
    objectives={
        "recurrent": "bertwright.systems.ulmfit.ulmfit_objective:RecurrentLanguageModel",
        "recurrent-rtl": "bertwright.systems.ulmfit.ulmfit_objective:BackwardLanguageModel",
    },
    sizes=SIZES,
    finetune_rate=FINETUNE_RATE,
    finetune_defaults=finetune_defaults,
    ladder=(LadderStep(100, "ULMFiT", {}, {"model": "ulmfit"}, ("ulmfit",), {"trec6": 96.4}, over=()),),
)
