"""A linear-chain conditional random field over tags (Lafferty et al. 2001; Ma & Hovy 2016, section 2.3).

R words of B sequences, end to end; C tags. A path gives each word of a sequence a tag. Its score is the sum of the
words' emissions, of the transitions between neighbours, and of the scores of its first and last tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertwright.base.ragged import Ints
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.linear import Linear
from bertwright.models.packing import TimeMajor
from bertwright.tables.tag_schemes import AllowedTags, Scheme, allowed_tags

Reduction = Callable[[Tensor], Tensor]  # reduces N × C × … over dimension 1
FORBIDDEN = -1e4  # score of a transition that decoding must not take


class CrfScores(NamedTuple):
    """The scores that define a CRF's paths."""

    emissions: Tensor
    """R × C."""
    transitions: Tensor
    """C × C, from the row's tag to the column's."""
    start: Tensor
    """C, score of each tag as the first one."""
    end: Tensor
    """C, score of each tag as the last one."""

    def negative_log_likelihood(self, tags: Tensor, lengths: Ints) -> Tensor:
        """Return the sum over the sequences of -log p(tags); `tags`: R int64, `lengths`: B."""
        return log_partition(self, lengths) - path_score(self, tags, lengths)


def sum_paths(scores: CrfScores, lengths: Ints, reduce: Reduction) -> Tensor:
    """Return the sum over all sequences of their paths' scores, reduced by log-sum-exp or by the maximum.

    This is the forward algorithm: after each step, `alpha` has the reduced score of all paths to each tag. All
    sequences take a step together, and those that have ended drop out. `lengths` (B): words per sequence, at least 1.
    """
    order = TimeMajor.of(lengths, scores.emissions.device)
    first, *steps = torch.split(order.pack(scores.emissions), order.batch_sizes.tolist())
    alpha, ended = scores.start + first, []
    for emissions in steps:
        ended.append(alpha[len(emissions) :])
        alpha = reduce(alpha[: len(emissions), :, None] + scores.transitions) + emissions
    ended.append(alpha)
    return reduce(torch.cat(ended) + scores.end).sum()


log_partition = partial(sum_paths, reduce=partial(torch.logsumexp, dim=1))
"""Sum of the sequences' log Z."""
best_score = partial(sum_paths, reduce=lambda scores: scores.max(1).values)
"""Sum of the sequences' best paths' scores (Viterbi)."""


def path_score(scores: CrfScores, tags: Tensor, lengths: Ints) -> Tensor:
    """Return the sum of the scores of one path per sequence; `tags`: R int64."""
    ends = torch.from_numpy(lengths.cumsum()).to(tags.device)
    begins = ends - torch.from_numpy(lengths).to(tags.device)
    inside = torch.ones_like(tags, dtype=torch.bool)
    inside[begins] = False  # words with a neighbour before them
    after = inside.nonzero()[:, 0]
    emitted = scores.emissions.gather(1, tags[:, None]).sum() + scores.transitions[tags[after - 1], tags[after]].sum()
    return emitted + scores.start[tags[begins]].sum() + scores.end[tags[ends - 1]].sum()


@torch.inference_mode(False)
@torch.enable_grad()
def gradient_of_emissions(function: Callable[[CrfScores, Ints], Tensor], scores: CrfScores, lengths: Ints) -> Tensor:
    """Differentiate by the emissions, R × C.

    The gradient of log Z is each tag's marginal probability, which the backward algorithm would compute (Eisner 2016).
    The gradient of the best score is 1 at the tags of the best path and 0 elsewhere, so backtracking needs no code.
    """
    given = CrfScores(*(tensor.detach().clone() for tensor in scores))
    given.emissions.requires_grad_()
    (gradient,) = torch.autograd.grad(function(given, lengths), given.emissions)
    return gradient


def best_path(scores: CrfScores, lengths: Ints) -> Tensor:
    """Return the tags of each sequence's best path, R int64."""
    return gradient_of_emissions(best_score, scores, lengths).argmax(1)


def marginals(scores: CrfScores, lengths: Ints) -> Tensor:
    """Return the probability of each tag of each word, R × C, summed over all paths."""
    return gradient_of_emissions(log_partition, scores, lengths)


class CrfHead(TaskHead):
    """A linear layer, whose outputs are a CRF's emissions, and the CRF's transitions.

    Its scores have a column for each tag's log-probability, and a last one for the number of the best path's tag.
    """

    def __init__(self, spec: HeadSpec, hidden_size: int, tags: Sequence[str], scheme: Scheme = "none") -> None:
        """Build the head; in decoding, a tag follows only tags that the scheme allows before it."""
        super().__init__(spec)
        self.allowed = None if scheme == "none" else allowed_tags(tags)
        self.classifier = Linear(hidden_size, spec.outputs)
        self.transitions = nn.Parameter(torch.zeros(spec.outputs, spec.outputs))
        self.start = nn.Parameter(torch.zeros(spec.outputs))
        self.end = nn.Parameter(torch.zeros(spec.outputs))

    @property
    def num_scores(self) -> int:
        return self.spec.outputs + 1

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> CrfScores:
        """Compute the scores from states R × H."""
        emissions = self.classifier(dropout(states, drop, 0).float())
        return CrfScores(emissions, self.transitions, self.start, self.end)

    def scores(self, output: Any, batch: TaskBatch) -> Tensor:
        """Return R × (C + 1): the logarithms of the marginal probabilities, and the best path's tags (Viterbi)."""
        lengths = batch.position_counts
        scores: CrfScores = output if self.allowed is None else self.forbid(output, self.allowed)
        logarithms = marginals(scores, lengths).clamp_min(1e-30).log()
        return torch.cat([logarithms, best_path(scores, lengths)[:, None].float()], 1)

    @staticmethod
    def forbid(scores: CrfScores, allowed: AllowedTags) -> CrfScores:
        """Return scores that give no path over forbidden transitions any weight."""
        masks = [torch.from_numpy(mask).to(scores.start.device) for mask in allowed]
        return CrfScores(
            scores.emissions, *(s.masked_fill(~m, FORBIDDEN) for s, m in zip(scores[1:], masks, strict=True))
        )
