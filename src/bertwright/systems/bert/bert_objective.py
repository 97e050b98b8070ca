"""Language models with BERT's layers: the model, its two losses and their scores; and the one-sided objectives.

Losses are sums, divided once by the counts of the whole step. B sequences of T tokens, M of them to be predicted,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from bertwright.kernels.cpu import available_memory
from bertwright.objectives.language_model_objective import (
    LanguageModelBatch,
    LanguageModelObjective,
    language_model_columns,
)
from bertwright.objectives.objective import M

if TYPE_CHECKING:
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.bert.bert_config import BertConfig
    from bertwright.training.loop import LossOutput


class BertObjective(LanguageModelObjective[M]):
    """A language model in BERT's shape; a subclass chooses the targets."""

    model_type: ClassVar[str] = "bert"
    """Of the model's folders, whose record has the model and its configuration."""
    model_name: ClassVar[str] = "a BERT"
    trains_all_parameters: ClassVar[bool] = False

    @property
    def model_class(self) -> type[M]:
        """The model to train; an objective with weights of its own has a subclass that adds a module for them."""
        from bertwright.interop.model_format import find_architecture

        return cast("type[M]", find_architecture(self.model_type).model)

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> M:
        from bertwright.interop.model_format import find_architecture
        from bertwright.systems.bert.bert_encoder import BertEncoder
        from bertwright.systems.bert.mimetic_init import mimetic_init_

        is_causal, is_reversed = self.direction != "bidirectional", self.direction == "right-to-left"
        config_class = cast("type[BertConfig]", find_architecture(self.model_type).config)
        config = settings.config_of(config_class, vocab_size, is_causal=is_causal, is_reversed=is_reversed)
        check_memory(config)
        build: Callable[..., M] = self.model_class
        model = build(config, seed)
        if self.scheme(settings, config) == "mimetic":
            assert isinstance(model.encoder, BertEncoder)
            mimetic_init_(model.encoder)
        return model

    def scheme(self, settings: ModelSettings, config: BertConfig) -> str | None:
        """Return how a new model's weights are drawn; None if --init-scheme is no option of the model."""
        has_schemes = self.model_options is None or "init_scheme" in self.model_options
        return settings.scheme_for(config) if has_schemes else None

    def describe_initialization(self, settings: ModelSettings, model: M) -> str:
        scheme = self.scheme(settings, cast("BertConfig", model.config))
        chosen = "" if scheme is None else f"initialization {scheme}, "
        return f"random, {chosen}deviation {model.config.initializer_range:.3g}"

    def check_model(self, model: M, folder: Path) -> None:
        config = cast("BertConfig", model.config)
        if config.direction != self.direction:
            raise ValueError(f"{folder}: a {config.direction} model does not fit --objective {self.name}")
        if self.has_next_sentence and config.type_vocab_size < 2:
            raise ValueError(
                f"type_vocab_size = 1: the model has one segment type, and --objective {self.name} reads pairs; choose "
                "--objective mlm"
            )

    def loss(self, model: M, batch: LanguageModelBatch) -> LossOutput:
        """Compute the mean cross entropies of tokens and of next sentences, added (appendix A.2), in nats.

        The last layer computes only the states that are read: B at [CLS], M at predicted tokens. Logits exist only for
        the predicted tokens, and never for all at once.
        """
        import torch
        import torch.nn.functional as F

        from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
        from bertwright.training.loop import LossOutput

        firsts = batch.packing.first_positions[: len(batch.nsp_labels)]
        hidden = model.encoder(batch.input, torch.cat([firsts, batch.mlm_positions]))  # B + M  H
        first, predicting = hidden.split([len(firsts), len(batch.mlm_positions)])
        lm_count = max(batch.lm_count, 1)
        loss, lm_correct = model.cross_entropy(predicting, batch.mlm_labels, 1 / lm_count)
        lm_sum = loss.detach() * lm_count
        nsp_sum = nsp_correct = torch.zeros((), device=hidden.device)
        if len(batch.nsp_labels):
            assert isinstance(model, BertForPretraining)  # because `has_next_sentence`
            answers = model.next_sentence(model.pooler(first)).float()  # B 2
            nsp_sum = F.cross_entropy(answers, batch.nsp_labels, reduction="sum")
            nsp_correct = (answers.argmax(-1) == batch.nsp_labels).sum()
            loss = loss + nsp_sum / batch.nsp_count

        lengths, predictions = batch.packing.lengths[: batch.num_sequences], batch.num_predictions
        config = cast("BertConfig", model.config)
        counts = {
            "lm_count": predictions,
            "nsp_count": batch.num_sequences if batch.nsp_count else 0,
            "tokens": int(lengths.sum()),
            "flops": config.count_training_flops(lengths, predictions, pooled=batch.nsp_count > 0),
        }
        sums = {"lm_sum": lm_sum, "lm_correct": lm_correct, "nsp_sum": nsp_sum.detach(), "nsp_correct": nsp_correct}
        return LossOutput.of(loss, sums, counts)

    def compute_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Compute means over all predictions and answers, losses in nats; without predictions or answers they are 0."""
        answers = max(sums["nsp_count"], 1)
        of_answers = {"nsp_loss": sums["nsp_sum"] / answers, "nsp_accuracy": sums["nsp_correct"] / answers}
        return super().compute_scores(sums) | of_answers


class LeftToRightLM(BertObjective[Any]):
    """Every token but the last predicts the next token ("LTR & No NSP", section 5.1).

    The model is a BERT whose tokens attend to one side only; its loss is the masked-LM loss with these targets.
    """

    name: ClassVar[str] = "ltr"
    summary: ClassVar[str] = "every next token, left to right (LTR & No NSP)"
    direction: ClassVar[str] = "left-to-right"
    columns = language_model_columns("left-to-right LM")


class RightToLeftLM(LeftToRightLM):
    """Every token but the first predicts the previous token."""

    name: ClassVar[str] = "rtl"
    summary: ClassVar[str] = "every previous token, right to left"
    direction: ClassVar[str] = "right-to-left"
    columns = language_model_columns("right-to-left LM")


def check_memory(config: BertConfig) -> None:
    """Raise ValueError if the model does not fit in memory; Linux would kill this process or another one."""
    needed, available = 4 * config.num_parameters, available_memory()
    if available is not None and needed > available:
        raise ValueError(
            f"{config.num_parameters:,} parameters take {needed / 1e9:,.0f} GB, and this machine has "
            f"{available / 1e9:,.0f} GB of memory; lower --num-layers ({config.num_layers:,}) or --hidden-size "
            f"({config.hidden_size:,})"
        )
