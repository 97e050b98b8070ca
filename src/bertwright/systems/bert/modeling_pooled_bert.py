"""BERT with a linear layer on the pooled states of all tokens, for `transformers`, which has no such class.

bertwright copies this file into model folders with such a head and does not use it itself. `transformers` opens them by

    AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)

N sequences of at most T tokens, H hidden size, M pooling modes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMultipleChoice, BertForSequenceClassification, BertModel


class PooledBertConfig(BertConfig):
    """A BERT's configuration with `pooling`, the M modes whose vectors are concatenated."""

    model_type = "bert-own-head"


class PooledBertModel(BertModel):
    """A BERT whose `pooler_output` has the pooled states, N × M·H."""

    config_class = PooledBertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **inputs: Any) -> Any:
        """Compute the states and pool them."""
        inputs |= {"return_dict": True, "use_cache": False}
        output = super().forward(input_ids, attention_mask=attention_mask, **inputs)
        states = output.last_hidden_state
        mask = states.new_ones(states.shape[:2]) if attention_mask is None else attention_mask
        output.pooler_output = torch.cat([pool(states, mask, mode) for mode in self.config.pooling], dim=1)
        return output


def pool(states: Tensor, attention_mask: Tensor, mode: str) -> Tensor:
    """Pool states N × T × H to N × H; `attention_mask`: N × T, 0 at padding."""
    mask = attention_mask[:, :, None].to(states.dtype)  # N T 1
    if mode in ("cls", "lasttoken"):
        first, last = attention_mask.argmax(1), attention_mask.cumsum(1).argmax(1)  # of equal numbers the first
        return states[torch.arange(len(states), device=states.device), first if mode == "cls" else last]
    if mode == "max":
        return states.masked_fill(mask == 0, -torch.inf).amax(1)
    if mode not in ("mean", "weightedmean", "mean_sqrt_len_tokens"):
        raise ValueError(f"config.json: pooling: {mode!r} is not known to this version of the code beside the weights")
    weights = mask * mask.cumsum(1) if mode == "weightedmean" else mask
    sums = weights.sum(1)
    return (states * weights).sum(1) / (sums.sqrt() if mode == "mean_sqrt_len_tokens" else sums)


class PooledBertForSequenceClassification(BertForSequenceClassification):
    """A classification or regression of texts by a linear layer on the pooled states."""

    config_class = PooledBertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = PooledBertModel(config)
        self.classifier = nn.Linear(len(config.pooling) * config.hidden_size, config.num_labels)
        self.post_init()


class PooledBertForMultipleChoice(BertForMultipleChoice):
    """A choice among endings by a linear layer on the pooled states of each."""

    config_class = PooledBertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = PooledBertModel(config)
        self.classifier = nn.Linear(len(config.pooling) * config.hidden_size, 1)
        self.post_init()
