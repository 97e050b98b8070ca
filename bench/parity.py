"""Our training and `transformers`' in lockstep: the same first weights, batches and dropout masks.

The peer is a model of `transformers` with `torch.optim.AdamW`, twice: on one thread and on two, which is the spread of
the peer itself. Every few steps a third one takes our weights and moments and makes one step from there.

T tokens, B sequences, S tokens of the longest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.bert import modeling_bert

from bertwright.interop.huggingface import file_names
from bertwright.kernels.dropout import Dropout, keep_mask
from bertwright.models.packing import Packing, TokenBatch
from bertwright.systems.bert.bert_encoder import SITES_PER_LAYER
from bertwright.training.fit import TrainingSpec
from bertwright.training.loop import LossOutput, train_steps
from environment import adamw
from transformers_baseline import pad

IGNORED = -100  # label in `transformers` of a position without a target

Inputs = dict[str, Tensor]
PeerLoss = Callable[[Any, Inputs], Tensor]


class Padded(NamedTuple):
    """A packed batch as rows of equal length."""

    tokens: Tensor
    """B × S int64, index of each token in the packed batch; 0 for padding."""
    real: Tensor
    """B × S bool, False for padding."""

    @classmethod
    def of(cls, packing: Packing) -> Padded:
        bounds = pairwise(packing.cu_seqlens.tolist())
        tokens = pad([list(range(first, last)) for first, last in bounds], -1)
        return cls(tokens.clamp(min=0), tokens >= 0)

    def inputs(self, batch: TokenBatch) -> Inputs:
        """Return the input of a model of `transformers`."""
        types = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        ids = {"input_ids": batch.input_ids[self.tokens] * self.real, "token_type_ids": types[self.tokens] * self.real}
        return ids | {"attention_mask": self.real.long()}

    def labels(self, positions: Tensor, labels: Tensor) -> Tensor:
        """Return B × S labels: those at the positions in the packed batch, IGNORED elsewhere."""
        flat = torch.full((int(self.real.sum()),), IGNORED)
        flat[positions] = labels
        return torch.where(self.real, flat[self.tokens], IGNORED)


class SharedMasks:
    """The dropout masks of our step for the padded batch of the peer. They depend on tokens, not on padding."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.drop = Dropout(rate, 0)
        self.tokens = torch.zeros(0, 0, dtype=torch.int64)
        self.masks: dict[int, Tensor] = {}
        """Of this step, by site: all peers use the same ones."""

    def start(self, packing: Packing, padded: Padded) -> None:
        """Take the keys of a step, whose sequences are one micro-batch."""
        self.drop = Dropout(self.rate, packing.dropout_seed)
        self.tokens = padded.tokens
        self.masks.clear()

    def apply(self, x: Tensor, rows: Tensor, site: int) -> Tensor:
        """Drop elements of x, … × C, whose rows have these indices."""
        key = self.drop.mask_key(site)
        if site not in self.masks:
            self.masks[site] = keep_mask(key, rows.flatten(), x.shape[-1]).view_as(x)
        return torch.where(self.masks[site], x * key.scale, 0.0)


class SharedDropout(nn.Module):
    """A dropout layer of the peer with the masks of one of our sites, for states of all tokens or of [CLS]."""

    def __init__(self, masks: SharedMasks, site: int) -> None:
        super().__init__()
        self.masks, self.site = masks, site

    def forward(self, states: Tensor) -> Tensor:
        rows = self.masks.tokens if states.ndim == 3 else self.masks.tokens[:, 0]
        return self.masks.apply(states, rows, self.site) if self.training else states


def share_dropout(model: Any, masks: SharedMasks) -> None:
    """Let a model of `transformers`, with attention "eager", draw its dropout from our masks."""
    layers = model.bert.encoder.layer
    model.bert.embeddings.dropout = SharedDropout(masks, 0)
    for number, layer in enumerate(layers):
        first = 1 + SITES_PER_LAYER * number
        layer.attention.self.shared = masks, first
        layer.attention.output.dropout = SharedDropout(masks, first + 1)
        layer.output.dropout = SharedDropout(masks, first + 2)
    if hasattr(model, "dropout"):
        model.dropout = SharedDropout(masks, 1 + SITES_PER_LAYER * len(layers))
    modeling_bert.eager_attention_forward = _attend


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT * scaling  # B A S S
    weights = (scores if mask is None else scores + mask).softmax(-1)
    if module.training:
        masks, site = module.shared
        heads = weights.shape[1]
        rows = masks.tokens[:, None] * heads + torch.arange(heads)[:, None]  # B A S
        weights = masks.apply(weights, rows, site)
    return (weights @ value).transpose(1, 2), weights


class Peer:
    """A model of `transformers`, its optimizer and its threads.

    PyTorch's norm of gradients, by which it clips, sums in float32 and is 1e-4 too small for a million of them.
    `exact_norm`: clip by the norm in double precision, so that this error does not hide others.
    """

    def __init__(
        self, model: Any, loss: PeerLoss, spec: TrainingSpec[Any], threads: int = 1, exact_norm: bool = False
    ) -> None:
        self.model, self.loss, self.threads, self.exact_norm = model.train(), loss, threads, exact_norm
        self.norm_error = 0.0
        """Relative error of PyTorch's norm in the last step, if it is known."""
        self.settings, self.optimizer = spec.optimizer.settings, adamw(model, spec.optimizer.settings)

    def step(self, inputs: Inputs, rate: float) -> float:
        """Make one step and return its loss."""
        torch.set_num_threads(self.threads)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.loss(self.model, inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        torch.set_num_threads(1)
        return float(loss.detach())

    def _clip(self) -> None:
        weights, most = list(self.model.parameters()), self.settings.max_grad_norm
        if not self.exact_norm:
            torch.nn.utils.clip_grad_norm_(weights, most)
            return
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
        self.norm_error = float(abs(torch.nn.utils.get_total_norm(gradients) - norm) / norm)
        torch.nn.utils.clip_grads_with_norm_(weights, most, norm)

    def weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def moments(self) -> dict[str, Tensor]:
        """Return the mean gradient of each parameter."""
        named = self.model.named_parameters()
        return {name: self.optimizer.state[parameter]["exp_avg"] for name, parameter in named}

    @torch.no_grad()
    def load(self, ours: Snapshot) -> None:
        """Take our weights, moments and number of steps."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(ours.weights[name])
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(ours.steps)),
                "exp_avg": ours.first[name].clone(),
                "exp_avg_sq": ours.second[name].clone(),
            }


class Snapshot(NamedTuple):
    """Our weights and moments before a step, by the names of `transformers`."""

    steps: int
    weights: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]

    @classmethod
    def of(cls, spec: TrainingSpec[Any]) -> Snapshot:
        optimizer, model = spec.optimizer, spec.model
        values = dict(model.named_parameters()), optimizer.exp_avg, optimizer.exp_avg_sq
        return cls(optimizer.steps, *(_by_file_name(model, tensors) for tensors in values))


def _by_file_name(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors of our parameters by the names of `transformers`."""
    named: dict[str, Tensor] = {}
    for name, names in file_names(model).items():
        if name in tensors:
            named |= zip(names, tensors[name].detach().clone().chunk(len(names)), strict=True)
    return named


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the Euclidean distance of the tensors that `other` has, in double precision."""
    return float(sum((one[name].double() - other[name].double()).square().sum() for name in other) ** 0.5)


def _compare_step(before: Snapshot, after: Snapshot, checker: Peer) -> dict[str, float]:
    """Return how far a peer's step from our weights is from our step: gradient, update, and rounding of the update.

    Rounding: the spacing of float32 at the weights, over the size of the update; no update can agree better.
    """
    beta = checker.settings.beta1
    decayed = {name: beta * moment for name, moment in before.first.items()}
    spacing = sum(((weight.abs() * torch.finfo().eps).square().sum() / 12) for weight in after.weights.values()) ** 0.5
    update = distance(before.weights, after.weights)
    return {
        "gradient": distance(checker.moments(), after.first) / distance(decayed, after.first),
        "update": distance(checker.weights(), after.weights) / update,
        "rounding": float(spacing) / update,
        "norm_of_peer": checker.norm_error,
    }


def run_lockstep(
    spec: TrainingSpec[Any],
    batches: Iterable[Any],
    convert: Callable[[Any, Padded], Inputs],
    make_model: Callable[[], Any],
    peer_loss: PeerLoss,
    masks: SharedMasks,
    every: int,
    report: Callable[[dict[str, Any]], None],
) -> Peer:
    """Train all sides on one micro-batch a step, report every few steps, and return the peer on one thread.

    `convert`: our batch as the peer's; `make_model`: a new model of `transformers`, whose weights are replaced by ours.
    """
    losses, first = list[float](), Snapshot.of(spec)
    peers = [Peer(make_model(), peer_loss, spec, threads) for threads in (1, 2)]
    checker = Peer(make_model(), peer_loss, spec, exact_norm=True)
    for peer in (*peers, checker):
        share_dropout(peer.model, masks)
        peer.load(first)

    def loss(batch: Any) -> LossOutput:
        output: LossOutput = spec.loss(batch)  # type: ignore[operator]
        losses.append(float(output.loss.detach()))
        return output

    given = list[Any]()

    def feed() -> Iterator[list[Any]]:
        for batch in batches:
            given[:] = [batch]
            yield given

    worst = {"loss": 0.0, "loss_of_peer": 0.0}
    own_steps, before = train_steps(loss, feed(), spec.optimizer, spec.schedule), first
    for result in own_steps:
        padded = Padded.of(given[0].packing)
        masks.start(given[0].packing, padded)
        inputs = convert(given[0], padded)
        one, two = (peer.step(inputs, result.learning_rate) for peer in peers)
        found = {"loss": abs(losses[-1] - one) / one, "loss_of_peer": abs(two - one) / one}
        worst = {name: float(np.maximum(worst[name], value)) for name, value in found.items()}  # NaN stays
        if (result.step - 1) % every == 0:
            checker.load(before)
            forced = abs(checker.step(inputs, result.learning_rate) - losses[-1]) / losses[-1]
            after = Snapshot.of(spec)
            way = distance(peers[0].weights(), first.weights)
            report(
                {"step": result.step, "value": losses[-1]}
                | {"same_weights": {"loss": forced} | _compare_step(before, after, checker)}
                | {"free_run": worst | {"weights": distance(peers[0].weights(), after.weights) / way}}
                | {"peer_on_two_threads": distance(peers[0].weights(), peers[1].weights()) / way}
            )
        if result.step % every == 0:
            before = Snapshot.of(spec)
    return peers[0]
