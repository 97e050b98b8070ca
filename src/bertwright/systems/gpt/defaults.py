"""GPT (Radford et al. 2018) without torch: its record and its settings of fine-tuning."""

from __future__ import annotations

from typing import Any

from bertwright.systems.registry import FinetuneRequest, LadderStep, System, default_learning_rate

FINETUNE_RATE = 6.25e-5  # section 4.1
SIMILARITY_TASKS = ("mrpc", "qqp", "stsb")  # their pairs have no order: GPT reads both


def finetune_defaults(request: FinetuneRequest) -> dict[str, Any]:
    """Return the settings with which GPT is fine-tuned (section 4.1), as a TOML table."""
    rate = default_learning_rate(FINETUNE_RATE, request.hidden_size)
    table: dict[str, Any] = {
        "epochs": 3.0,
        "batch_size": 32,
        "optimizer": {"learning_rate": rate, "warmup_ratio": 0.002, "eps": 1e-8},
        "tuning": {"auxiliary_lm": 0.5},
    }
    return table | ({"task": {"overrides": {"both_orders": True}}} if request.task in SIMILARITY_TASKS else {})


GPT = System(
    name="gpt",
    summary="GPT (Radford et al. 2018), a Transformer from left to right on a store of byte pairs",
    folders={"openai-gpt": "bertwright.systems.gpt.openai_gpt:GPT"},
    tokenizer="bertwright.vocabulary.byte_pair_tokenizer:BytePairTokenizer.load",
    objectives={"causal": "bertwright.systems.gpt.gpt_objective:GptObjective"},
    finetune_rate=FINETUNE_RATE,
    finetune_defaults=finetune_defaults,
    ladder=(LadderStep(110, "GPT, fine-tuned", {}, {"model": "gpt"}, ("gpt",), over=()),),
)
