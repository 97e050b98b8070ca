"""Generation of text by a left-to-right language model: greedy decoding, sampling, beam search.

N texts that are continued together, K hypotheses per text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertwright.base.ragged import Ints
from bertwright.base.seeding import make_rng
from bertwright.inference.text_settings import GenerationSettings
from bertwright.models.beam_search import beam_search
from bertwright.models.encoder import EncoderModel
from bertwright.systems.gpt.gpt import CachedGpt, GptLanguageModel
from bertwright.tasks.task import AnyTask
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import TextTokenizer

BATCH_ROWS = 64  # texts or hypotheses that are continued together: bounds memory, changes no result


class Generation(NamedTuple):
    """A continuation of a prompt."""

    text: str
    """The continuation without the prompt."""
    log_probability: float
    """Sum of the logarithms of its tokens' probabilities, in nats."""


def generate_texts(
    model: GptLanguageModel,
    tokenizer: TextTokenizer,
    prompts: Sequence[str],
    settings: GenerationSettings,
    places: Sequence[int] | None = None,
) -> list[Generation]:
    """Continue each prompt by `max_new_tokens` tokens, or as many as the model has positions for.

    `places`: number of each prompt, on which sampling depends; None: from 0. Special tokens are never generated.
    Raises ValueError for a prompt without tokens, and for one that leaves no position free.
    """
    ids = [row.tolist() for row in tokenizer.encode_raw(prompts)]
    most = model.config.max_positions
    for number, row in enumerate(ids):
        if not 1 <= len(row) < most:
            raise ValueError(
                f"prompt {number}: expected 1 to {most - 1} tokens, got {len(row)}; the model has {most} positions"
            )
    limits = np.array([min(settings.max_new_tokens, most - len(row)) for row in ids], dtype=np.int64)
    forbidden = torch.tensor(tokenizer.special_ids, device=model.encoder.embeddings.word.weight.device)
    step, generations = BATCH_ROWS // settings.num_beams or 1, list[Generation]()
    for first in range(0, len(ids), step):
        batch, batch_limits = ids[first : first + step], limits[first : first + step]
        if settings.num_beams > 1:
            decoder = BeamDecoder(model, batch, forbidden)
            found = beam_search(decoder, batch_limits, settings.num_beams, 0.0, start=0, end=-1)
            continued = [(hypothesis.tokens, hypothesis.score) for hypothesis in found]
        else:
            numbers = (range(len(ids)) if places is None else places)[first : first + step]
            uniform = [make_rng(settings.seed, number).random(settings.max_new_tokens) for number in numbers]
            continued = continue_texts(model, batch, batch_limits, forbidden, settings, np.stack(uniform))
        generations += [Generation(tokenizer.decode(tokens), score) for tokens, score in continued]
    return generations


def to_generator(model: EncoderModel, task: AnyTask | None) -> GptLanguageModel:
    """Return a model as one that continues texts. Raises ValueError for another one."""
    if isinstance(model, GptLanguageModel):
        return model
    kind = f"a model for {task.kind}" if task else f"a {model.encoder.model_type}"
    raise ValueError(
        f"generate: expected a language model of bertwright pretrain --architecture gpt, got {kind}; choose one"
    )


def next_logits(model: GptLanguageModel, states: Tensor, forbidden: Tensor) -> Tensor:
    """Compute the logits of the next token, N × V; the `forbidden` ids have -∞."""
    logits = model.encoder.logits(states)
    check_finite_outputs(bool(logits.isfinite().all()))
    return logits.index_fill(1, forbidden, -torch.inf)


def continue_texts(
    model: GptLanguageModel,
    ids: Sequence[Sequence[int]],
    limits: Ints,
    forbidden: Tensor,
    settings: GenerationSettings,
    uniform: np.ndarray,
) -> list[tuple[list[int], float]]:
    """Continue N texts token by token, by the most probable one or, in sampling, by the numbers `uniform` (N × steps).

    Return the new tokens of each text and the sum of their log-probabilities.
    """
    cached = CachedGpt(model.encoder)
    states, alive = cached.extend(ids), np.arange(len(ids))
    continued: list[list[int]] = [[] for _ in ids]
    scores = np.zeros(len(ids))
    for step in range(int(limits.max(initial=0))):
        logits = next_logits(model, states, forbidden)
        draws = torch.from_numpy(uniform[alive, step]).to(logits.device)
        tokens = sample_tokens(logits, settings, draws) if settings.samples else logits.argmax(1)
        scores[alive] += logits.double().log_softmax(1).gather(1, tokens[:, None])[:, 0].cpu().numpy()
        chosen = tokens.tolist()
        for row, token in zip(alive.tolist(), chosen, strict=True):
            continued[row].append(token)
        (going,) = np.nonzero(limits[alive] > step + 1)
        if not len(going):
            break
        states, alive = cached.extend([[chosen[row]] for row in going], going.tolist()), alive[going]
    return list(zip(continued, scores.tolist(), strict=True))


def sample_tokens(logits: Tensor, settings: GenerationSettings, uniform: Tensor) -> Tensor:
    """Draw a token from each row of logits, N × V → N int64, by inverting its distribution at `uniform` (N).

    The temperature comes first, then the `top_k` most probable tokens (Fan et al. 2018), then the fewest tokens whose
    probabilities sum to `top_p` (Holtzman et al. 2020).
    """
    ordered, tokens = (logits.double() / settings.temperature).sort(dim=1, descending=True, stable=True)
    if settings.top_k is not None:
        ordered[:, settings.top_k :] = -torch.inf
    shares = ordered.softmax(1)
    if settings.top_p is not None:
        shares[(shares.cumsum(1) - shares) >= settings.top_p] = 0  # what comes before suffices
    bounds = shares.cumsum(1)
    ranks = (bounds < uniform[:, None] * bounds[:, -1:]).sum(1, keepdim=True)
    return tokens.gather(1, ranks)[:, 0]


class BeamDecoder:
    """A GPT that continues the hypotheses of `beam_search`; each source is a prompt."""

    def __init__(self, model: GptLanguageModel, ids: Sequence[Sequence[int]], forbidden: Tensor) -> None:
        """Read the prompts."""
        self.model, self.forbidden = model, forbidden
        self.cached = CachedGpt(model.encoder)
        self.states: Tensor | None = self.cached.extend(ids)
        self.rows = np.arange(len(ids))  # sequence of the cache that each row of the last step continues

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        """Compute the logits after one more token of each hypothesis; see `beam_search.StepDecoder`.

        In the first step the prompts have been read already: its tokens stand for their ends.
        """
        if self.states is not None:
            states, self.states = self.states[parents.to(self.states.device)], None
            self.rows = parents.numpy()
        else:
            new = [[token] for token in tokens.tolist()]
            states = self.cached.extend(new, self.rows[parents.numpy()].tolist())
            self.rows = np.arange(len(new))
        return next_logits(self.model, states, self.forbidden).cpu()
