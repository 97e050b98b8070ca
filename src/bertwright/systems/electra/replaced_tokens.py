"""ELECTRA's objective (Clark et al. 2020, arXiv 2003.10555, section 2): finding the tokens that were replaced.

A generator predicts the masked tokens, and a token drawn from its prediction stands in for each. The discriminator
tells for every token of the text whether it is the original one; only the discriminator is kept for fine-tuning.

T tokens, M of them masked, h hidden size of the generator, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertwright.base.example_order import uniform
from bertwright.base.seeding import derive_key
from bertwright.objectives.language_model_objective import LanguageModelBatch, load_first_model, load_kind
from bertwright.objectives.masked_tokens import MaskedTokens
from bertwright.objectives.objective import LOSS, Column
from bertwright.systems.bert.bert_base import check_memory, describe_random_weights, new_bert

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertwright.interop.sentence_modules import SentenceModules
    from bertwright.objectives.data import StepTexts
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.electra.electra import ElectraForPretraining
    from bertwright.training.loop import LossOutput
    from bertwright.vocabulary.tokenizer import TextTokenizer

DETECTION_WEIGHT = 50.0  # λ: a binary loss over all tokens is much smaller than one over a vocabulary (section 2)
GENERATOR = "generator"  # folder of the generator inside a model folder
DRAWS = 3  # number of the stream of a step's mask key by which replacements are drawn


@dataclass(frozen=True, kw_only=True)
class ReplacedTokenBatch(LanguageModelBatch):
    """A micro-batch of masked texts, and the random numbers by which their masks are filled."""

    draws: Tensor
    """M float64 in [0, 1)."""
    num_step_tokens: int
    """Tokens of the whole step, by which the discriminator's summed loss is divided."""

    def to(self, device: torch.device | str) -> ReplacedTokenBatch:
        moved = super().to(device)
        assert isinstance(moved, ReplacedTokenBatch)  # `replace` keeps the class
        return replace(moved, draws=self.draws.to(device, non_blocking=True))


class ReplacedTokens(MaskedTokens["ElectraForPretraining"]):
    """The loss of a generator, and λ times that of a discriminator which reads the generator's texts."""

    name: ClassVar[str] = "replaced-tokens"
    summary: ClassVar[str] = "whether each token was replaced by a small masked LM (ELECTRA, arXiv 2003.10555)"
    model_name: ClassVar[str] = "an ELECTRA"
    model_options = (
        "size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "hidden_dropout",
        "attention_dropout", "activation", "initializer_range", "init_scheme",
    )  # fmt: skip
    # Table 6 of the paper, base; every masked token is shown as [MASK] (section 2).
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 512, "mask_mix": [1.0, 0.0, 0.0], "short_seq_prob": 0.05},
        "long": {"long_ratio": 0.0},
        "optimizer": {"learning_rate": 2e-4},
    }
    columns = (
        Column(LOSS, "generator loss (nats)", "{:.3f}", "generator loss {:.3f}", "generator {:.3f}", True),
        Column("mlm_accuracy", "generator accuracy", "{:.1%}", "accuracy {:.1%}", is_plotted=True),
        Column("detection_loss", "discriminator loss (nats)", "{:.4f}", "discriminator {:.4f}", "discr. {:.4f}", True),
        Column("found", "replaced tokens found", "{:.1%}", "found {:.1%}", "found {:.0%}", True),
        Column("false_alarms", "original tokens taken for replaced", "{:.2%}", "false alarms {:.2%}"),
    )

    @property
    def model_class(self) -> type[ElectraForPretraining]:
        from bertwright.systems.electra.electra import ElectraForPretraining

        return ElectraForPretraining

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> ElectraForPretraining:
        """Return a new model whose embeddings have the discriminator's hidden size, as the paper's base model."""
        from bertwright.systems.electra.electra import ElectraConfig, ElectraDiscriminator, ElectraGenerator

        config = settings.config_of(ElectraConfig, vocab_size)
        config = replace(config, embedding_size=config.hidden_size)
        check_memory(config)
        discriminator = new_bert(settings, config, seed, ElectraDiscriminator)
        return self.model_class(discriminator, ElectraGenerator(config.generator, seed))

    def describe_initialization(self, settings: ModelSettings, model: ElectraForPretraining) -> str:
        return describe_random_weights(settings, model.config)

    def load_model(
        self, folder: Path, settings: ModelSettings, tokenizer: TextTokenizer, is_checkpoint: bool
    ) -> tuple[ElectraForPretraining, list[str]]:
        from bertwright.systems.electra.electra import ElectraDiscriminator, ElectraGenerator

        heads: Any = "required" if is_checkpoint else "optional"
        found, loaded = load_first_model(folder, ElectraDiscriminator, self.model_name, settings, tokenizer, heads)
        notices = [f"{folder} has no {head} head: it starts from random weights" for head in loaded.missing_heads]
        if is_checkpoint or (folder / GENERATOR).is_dir():
            name = "an ELECTRA's generator"
            generator, _ = load_kind(folder / GENERATOR, ElectraGenerator, name, heads, settings.dropouts)
        else:
            generator = ElectraGenerator(found.config.generator)
            notices.append(f"{folder} has no folder {GENERATOR}: the generator starts from random weights")
        return self.model_class(found, generator), notices

    def write_model(
        self,
        folder: Path,
        model: ElectraForPretraining,
        tokenizer: TextTokenizer,
        modules: SentenceModules | None = None,
    ) -> None:
        """Write the discriminator's folder, and the generator's inside it, from which a run resumes."""
        from bertwright.interop import huggingface

        (folder / GENERATOR).mkdir()
        huggingface.write_model(folder / GENERATOR, model.generator, tokenizer)
        huggingface.write_model(folder, model, tokenizer, (GENERATOR,), modules)

    def make_batches(self, step: StepTexts, micro_batches: Sequence[range]) -> list[LanguageModelBatch]:
        import torch

        key, batches = derive_key(step.mask_key, DRAWS), list[LanguageModelBatch]()
        for batch in super().make_batches(step, micro_batches):
            draws = uniform(batch.mlm_positions.numpy() + batch.packing.first_token, key)
            added: Any = {"draws": torch.from_numpy(draws), "num_step_tokens": step.num_tokens}
            batches.append(ReplacedTokenBatch(**vars(batch), **added))
        return batches

    def pad_batch(self, batch: LanguageModelBatch, sequences: int, settings: DataSettings) -> LanguageModelBatch:
        import torch.nn.functional as F

        padded = super().pad_batch(batch, sequences, settings)
        assert isinstance(padded, ReplacedTokenBatch)
        return replace(padded, draws=F.pad(padded.draws, (0, padded.added_predictions)))

    def loss(self, model: ElectraForPretraining, batch: LanguageModelBatch) -> LossOutput:
        """Compute the mean masked-LM loss of the generator + λ × the mean binary loss of the discriminator, in nats.

        The discriminator's gradient does not reach the generator, which is trained by maximum likelihood (section 2).
        """
        import torch
        import torch.nn.functional as F

        from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
        from bertwright.training.loop import LossOutput

        assert isinstance(batch, ReplacedTokenBatch)  # of `make_batches`
        generator, packing = model.generator, batch.packing
        generator.encoder.compute_dtype = model.encoder.compute_dtype
        masked = batch.input.with_dropout(packing.dropout_seed ^ 1, packing.first_token)  # masks of its own
        states = generator.masked_token(generator.encoder(masked, batch.mlm_positions))  # M h
        words, bias, lm_count = generator.word_embeddings, generator.masked_token.bias, max(batch.lm_count, 1)
        loss, lm_correct = linear_cross_entropy(states, words, bias, batch.mlm_labels, scale=1 / lm_count)
        lm_sum = loss.detach() * lm_count

        text, is_replaced = replace_tokens(batch, sample_tokens(states, words, bias, batch.draws))
        logits = model.replaced_token(model.encoder(replace(batch.input, input_ids=text)))  # T
        lengths = packing.lengths[: batch.num_sequences]
        is_real = torch.arange(len(text), device=text.device) < int(lengths.sum())  # no padding
        losses = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="none")
        detection_sum = torch.where(is_real, losses, 0.0).sum()
        alarms = (logits > 0) & is_real
        sums = {
            "lm_sum": lm_sum,
            "lm_correct": lm_correct,
            "detection_sum": detection_sum.detach(),
            "replaced": is_replaced.sum(),
            "found_sum": (alarms & is_replaced).sum(),
            "alarms": alarms.sum(),
        }
        predictions, config = batch.num_predictions, model.config
        counts = {
            "lm_count": predictions,
            "tokens": int(lengths.sum()),
            "flops": generator.config.count_training_flops(lengths, predictions, pooled=False)
            + 3 * config.count_forward_flops(lengths, 0, pooled=False),
        }
        return LossOutput.of(loss + detection_sum * (DETECTION_WEIGHT / batch.num_step_tokens), sums, counts)

    def compute_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        tokens, replaced = max(sums["tokens"], 1), sums["replaced"]
        return super().compute_scores(sums) | {
            "detection_loss": sums["detection_sum"] / tokens,
            "found": sums["found_sum"] / max(replaced, 1),
            "false_alarms": (sums["alarms"] - sums["found_sum"]) / max(tokens - replaced, 1),
        }


def sample_tokens(states: Tensor, words: Tensor, bias: Tensor, draws: Tensor) -> Tensor:
    """Draw a token from the softmax of each of M states M × h, by its number in [0, 1): M int64."""
    import torch

    from bertwright.kernels.fused_ops import linear
    from bertwright.kernels.linear_cross_entropy import row_chunks

    drawn = torch.empty(len(states), dtype=torch.int64, device=states.device)
    with torch.no_grad():
        for rows in row_chunks(states, 3 * len(words)):  # the sums below take twice the space of the logits
            shares = (linear(states[rows], words).float() + bias).softmax(-1).cumsum(-1, dtype=torch.float64)
            drawn[rows] = torch.searchsorted(shares, draws[rows, None] * shares[:, -1:], right=True)[:, 0]
    return drawn.clamp_(max=len(words) - 1)


def replace_tokens(batch: LanguageModelBatch, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the text in which M drawn tokens replace the masked ones, T int64, and which tokens differ, T bool.

    A token that is drawn as it was counts as original (section 2).
    """
    import torch

    text, is_replaced = batch.input.input_ids.clone(), torch.zeros_like(batch.input.input_ids, dtype=torch.bool)
    predicted = batch.mlm_labels >= 0  # no padding
    text[batch.mlm_positions] = torch.where(predicted, drawn, text[batch.mlm_positions])
    is_replaced[batch.mlm_positions] = predicted & (drawn != batch.mlm_labels)
    return text, is_replaced
