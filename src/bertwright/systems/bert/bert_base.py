"""The base of BERT's objectives: the model, its two losses, and their scores.

Losses are sums, divided once by the counts of the whole step. B sequences of T tokens, M of them to be predicted,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from bertwright.kernels.cpu import available_memory
from bertwright.objectives.language_model_objective import LanguageModelBatch, LanguageModelObjective

if TYPE_CHECKING:
    from bertwright.models.encoder import EncoderModel
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.bert.bert_config import BertConfig
    from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel
    from bertwright.training.loop import LossOutput

N = TypeVar("N", bound="EncoderModel")


class BertObjective(LanguageModelObjective["MaskedLanguageModel"]):
    """A language model in BERT's shape; a subclass chooses the targets."""

    model_name: ClassVar[str] = "a BERT"
    trains_all_parameters: ClassVar[bool] = False

    @property
    def model_class(self) -> type[MaskedLanguageModel]:
        """The model to train; an objective with weights of its own has a subclass that adds a module for them."""
        from bertwright.systems.bert.bert_for_pretraining import BertForPretraining

        return BertForPretraining

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> MaskedLanguageModel:
        is_causal, is_reversed = self.direction != "bidirectional", self.direction == "right-to-left"
        config = settings.config(vocab_size, is_causal, is_reversed)
        check_memory(config)
        return new_bert(settings, config, seed, self.model_class)

    def check_model(self, model: MaskedLanguageModel, folder: Path) -> None:
        if model.config.direction != self.direction:
            raise ValueError(f"{folder}: a {model.config.direction} model does not fit --objective {self.name}")
        if self.has_next_sentence and model.config.type_vocab_size < 2:
            raise ValueError(
                f"type_vocab_size = 1: the model has one segment type, and --objective {self.name} reads pairs; choose "
                "--objective mlm"
            )

    def describe_initialization(self, settings: ModelSettings, model: MaskedLanguageModel) -> str:
        return describe_random_weights(settings, model.config)

    def loss(self, model: MaskedLanguageModel, batch: LanguageModelBatch) -> LossOutput:
        """Compute mean masked-LM + mean next-sentence cross entropy (appendix A.2), in nats.

        The last layer computes only the states that are read: B at [CLS], M at predicted tokens. Logits exist only for
        the predicted tokens, and never for all at once.
        """
        import torch
        import torch.nn.functional as F

        from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
        from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
        from bertwright.training.loop import LossOutput

        firsts = batch.packing.first_positions[: len(batch.nsp_labels)]
        hidden = model.encoder(batch.input, torch.cat([firsts, batch.mlm_positions]))  # B + M  H
        first, masked = hidden.split([len(firsts), len(batch.mlm_positions)])
        states, head = model.masked_token(masked), model.masked_token  # M H
        lm_count = max(batch.lm_count, 1)
        loss, lm_correct = linear_cross_entropy(
            states, model.word_embeddings, head.bias, batch.mlm_labels, scale=1 / lm_count
        )
        lm_sum = loss.detach() * lm_count
        nsp_sum = nsp_correct = torch.zeros((), device=hidden.device)
        if len(batch.nsp_labels):
            assert isinstance(model, BertForPretraining)  # because `has_next_sentence`
            answers = model.next_sentence(model.pooler(first)).float()  # B 2
            nsp_sum = F.cross_entropy(answers, batch.nsp_labels, reduction="sum")
            nsp_correct = (answers.argmax(-1) == batch.nsp_labels).sum()
            loss = loss + nsp_sum / batch.nsp_count

        lengths, predictions = batch.packing.lengths[: batch.num_sequences], batch.num_predictions
        counts = {
            "lm_count": predictions,
            "nsp_count": batch.num_sequences if batch.nsp_count else 0,
            "tokens": int(lengths.sum()),
            "flops": model.config.count_training_flops(lengths, predictions, pooled=batch.nsp_count > 0),
        }
        sums = {"lm_sum": lm_sum, "lm_correct": lm_correct, "nsp_sum": nsp_sum.detach(), "nsp_correct": nsp_correct}
        return LossOutput.of(loss, sums, counts)

    def compute_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Compute means over all predictions and answers, losses in nats; without predictions or answers they are 0."""
        scores = super().compute_scores(sums)
        if "nsp_count" in sums:
            answers = max(sums["nsp_count"], 1)
            scores |= {"nsp_loss": sums["nsp_sum"] / answers, "nsp_accuracy": sums["nsp_correct"] / answers}
        return scores


def new_bert(settings: ModelSettings, config: BertConfig, seed: int, model_class: Callable[..., N]) -> N:
    """Build a model with BERT's layers, whose initial weights have the scheme of the settings."""
    from bertwright.systems.bert.bert_encoder import BertEncoder
    from bertwright.systems.bert.mimetic_init import mimetic_init_

    model = model_class(config, seed)
    if settings.scheme_for(config) == "mimetic":
        assert isinstance(model.encoder, BertEncoder)
        mimetic_init_(model.encoder)
    return model


def describe_random_weights(settings: ModelSettings, config: BertConfig) -> str:
    """Describe the initial weights of `new_bert`, for people."""
    return f"random, initialization {settings.scheme_for(config)}, deviation {config.initializer_range:.3g}"


def check_memory(config: BertConfig) -> None:
    """Raise ValueError if the model does not fit in memory; Linux would kill this process or another one."""
    needed, available = 4 * config.num_parameters, available_memory()
    if available is not None and needed > available:
        raise ValueError(
            f"{config.num_parameters:,} parameters take {needed / 1e9:,.0f} GB, and this machine has "
            f"{available / 1e9:,.0f} GB of memory; lower --num-layers ({config.num_layers:,}) or --hidden-size "
            f"({config.hidden_size:,})"
        )
