"""All layers of an encoder on a GPU as two CUDA graphs, forward and backward, in training.

Python needs longer to start the kernels of a small step than a GPU to run them; a graph starts them all at once. Its
kernels always read and write the same memory with the same sizes: so batches are padded to one of few sizes, by
sequences of padding that nothing reads. Padding does not depend on whether a graph exists, so a run that is resumed
has the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.base.messages import print_message
from bertwright.kernels.dropout import MaskKey
from bertwright.kernels.fused_encoder import PARAMS_PER_LAYER, FusedArgs, by_layer
from bertwright.kernels.gpu_linear import copy_address
from bertwright.kernels.triton.dropout_masks import store
from bertwright.kernels.triton.encoder_layer import LayerGradients, backward_layer, forward_layers, layer_inputs
from bertwright.kernels.triton.launch import cdiv, next_power_of_2
from bertwright.kernels.weak_tensors import WeakTensorMap

USES_BEFORE_CAPTURE = 1
"""Passes with the same sizes before they become a graph: the first one compiles kernels, which a graph cannot."""
MAX_SIZES = 64
"""Sizes of one encoder whose memory and graphs are remembered."""
_problems: list[str] = []
"""Why this process records no graphs any more."""


class Sizes(NamedTuple):
    """Sizes of a padded batch."""

    tokens: int
    sequences: int
    """Offsets of sequences, less one: those of padding included."""
    selected: int | None
    """R: states that leave the last layer; None: all tokens."""
    max_seqlen: int


def pad_sizes(tokens: int, sequences: int, selected: int | None, max_seqlen: int) -> Sizes:
    """Choose the sizes of the padded batch: few different ones, with 6 % more tokens at most, or 64 more.

    >>> pad_sizes(tokens=700, sequences=32, selected=32, max_seqlen=50)
    Sizes(tokens=704, sequences=34, selected=32, max_seqlen=64)
    >>> pad_sizes(tokens=704, sequences=32, selected=31, max_seqlen=50)  # unused places read a token of padding
    Sizes(tokens=768, sequences=34, selected=32, max_seqlen=64)
    """
    longest = max(next_power_of_2(max_seqlen), 16)
    chosen = None if selected is None else round_up(selected, max(next_power_of_2(selected) // 8, 16))
    step = max(next_power_of_2(tokens) // 32, 64)
    padded = round_up(tokens + (chosen != selected), step)
    paddings = cdiv(step, longest) + 1
    return Sizes(padded, round_up(sequences, max(next_power_of_2(sequences) // 8, 1)) + paddings, chosen, longest)


def round_up(number: int, step: int) -> int:
    return cdiv(number, step) * step


class Pass:
    """A forward pass; it lives as long as its backward pass may come."""

    saved: list[list[Tensor]]
    """What `forward_layer` returned for each trained layer, unless a graph holds it."""


class PaddedEncoder:
    """The layers of one encoder for batches of one size: the memory of its input and results, and its graphs."""

    def __init__(self, sizes: Sizes, args: FusedArgs, like: Tensor, gradients: list[LayerGradients]) -> None:
        """Allocate the input. `like`: states of the encoder; `gradients`: of the layers from `first_saved` on."""
        self.sizes, self.first_saved = sizes, args.first_saved
        self.hidden = like.new_zeros(sizes.tokens, like.shape[1])
        self.cu_seqlens = like.new_zeros(sizes.sequences + 1, dtype=torch.int32)
        self.positions = None if sizes.selected is None else like.new_zeros(sizes.selected, dtype=torch.int64)
        self.numbers = like.new_zeros(len(args.mask_keys), 3, dtype=torch.int64)
        keys = [store(key, numbers, self.positions) for numbers, key in zip(self.numbers, args.mask_keys, strict=True)]
        self.inputs = layer_inputs(args.shape, (self.cu_seqlens, sizes.max_seqlen), self.positions, keys)
        rows = sizes.tokens if sizes.selected is None else sizes.selected
        self.dy = like.new_zeros(rows, like.shape[1])
        self.gradients = gradients
        self.gradient_addresses = {tensor.data_ptr() for layer in gradients for tensor in layer.by_parameter()}
        self.uses = 0
        """Backward passes so far."""
        self.graphs: tuple[Any, Any] | None = None
        self.addresses: list[int] = []
        """Of the weights that the graphs read."""
        self.pending: weakref.ref[Pass] | None = None
        """The forward pass whose backward pass is still to come."""

    @property
    def is_pending(self) -> bool:
        return self.pending is not None and self.pending() is not None

    def load(self, hidden: Tensor, cu_seqlens: Tensor, positions: Tensor | None, keys: Sequence[MaskKey]) -> None:
        """Copy a batch to the memory of the input."""
        tokens, sizes = len(hidden), self.sizes
        self.hidden[:tokens] = hidden
        self.hidden[tokens:] = 0
        paddings = range(1, sizes.sequences + 2 - len(cu_seqlens))
        ends = [min(tokens + number * sizes.max_seqlen, sizes.tokens) for number in paddings]
        self.cu_seqlens[: len(cu_seqlens)] = cu_seqlens
        self.cu_seqlens[len(cu_seqlens) :] = self.to_device(ends, torch.int32)
        if positions is not None and self.positions is not None:
            self.positions[: len(positions)] = positions
            self.positions[len(positions) :] = sizes.tokens - 1
        self.numbers.copy_(self.to_device([[key.first_token, key.key0, key.key1] for key in keys], torch.int64))

    def to_device(self, numbers: Any, dtype: torch.dtype) -> Tensor:
        """Copy numbers without waiting for the GPU."""
        device = self.hidden.device
        return torch.tensor(numbers, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)

    def compute(self, layers: Sequence[Any], token: Pass) -> Tensor:
        """Compute the states that leave the last layer; save for the pass what its backward pass needs."""
        hidden, token.saved = forward_layers(self.hidden, layers, self.inputs, self.first_saved)
        return hidden

    def compute_backward(self, layers: Sequence[Any], token: Pass) -> Tensor:
        """Compute the gradient of the first trained layer's input, and all gradients of parameters."""
        dhidden = self.dy
        for number in range(len(layers) - 1, self.first_saved - 1, -1):
            gradients = self.gradients[number - self.first_saved]
            dhidden = backward_layer(dhidden, layers[number], self.inputs[number], token.saved.pop(), gradients)
        return dhidden

    def forward(self, layers: Sequence[Any], token: Pass, pool: Any) -> Tensor:
        """Compute the states that leave the last layer, by a graph if there is one.

        `pool`: memory for a new graph; None: nothing is recorded.
        """
        addresses = weight_addresses(layers, self.hidden.dtype)
        if self.graphs and addresses != self.addresses:  # a weight has moved
            self.graphs, self.uses = None, 0
        if not self.graphs and self.uses >= USES_BEFORE_CAPTURE and pool is not None and not _problems:
            try:
                self.capture(layers, pool)
                self.addresses = addresses
            except torch.OutOfMemoryError:
                self.uses = 0  # later there may be more memory
            except RuntimeError as error:
                _problems.append(str(error))
                print_message(
                    "note: the kernels of a step cannot be recorded as a CUDA graph and are started one by one, which "
                    f"is slower for small batches: {str(error).splitlines()[0]}"
                )
        if not self.graphs:
            return self.compute(layers, token)
        self.graphs[0].replay()
        return self.y.clone()  # a caller may keep the states, and the next batch overwrites y

    def backward(self, dy: Tensor, layers: Sequence[Any], token: Pass) -> Tensor:
        """Compute all gradients, by a graph if there is one; return the gradient of the input."""
        self.dy[: len(dy)] = dy
        self.dy[len(dy) :] = 0
        self.uses += 1
        if not self.graphs:
            return self.compute_backward(layers, token)
        self.graphs[1].replay()
        return self.dhidden.clone()

    def capture(self, layers: Sequence[Any], pool: Any) -> None:
        """Record both passes. Their memory is shared with the encoder's other graphs, which never run in between."""
        device, graphs, token = self.hidden.device, (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()), Pass()
        stream = capture_stream(device)
        torch.cuda.empty_cache()  # what the passes without a graph used
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self.y = record(graphs[0], pool, lambda: self.compute(layers, token))
            self.dhidden = record(graphs[1], graphs[0].pool(), lambda: self.compute_backward(layers, token))
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graphs = graphs


def record(graph: Any, pool: Any, compute: Callable[[], Tensor]) -> Tensor:
    """Record what `compute` starts as a graph, and return its result."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        return compute()
    finally:
        graph.capture_end()


@cache
def capture_stream(device: torch.device) -> Any:
    """Return the stream on which graphs are recorded."""
    return torch.cuda.Stream(device)


def weight_addresses(layers: Sequence[Any], dtype: torch.dtype) -> list[int]:
    """Return the addresses of the parameters and of their copies, which kernels read."""

    def copied(parameter: Tensor) -> int:
        return copy_address(parameter, dtype)

    return [address(parameter) for layer in layers for parameter in layer for address in (Tensor.data_ptr, copied)]


class Encoder:
    """An encoder with the memory of its gradients, and its layers for batches of several sizes.

    `parameter.grad` shares this memory until the next backward pass, as does every result of `torch.autograd.grad`.
    """

    def __init__(self) -> None:
        self.gradients: dict[int, LayerGradients] = {}
        self.padded: dict[Any, PaddedEncoder] = {}

    @property
    def is_pending(self) -> bool:
        return any(padded.is_pending for padded in self.padded.values())

    def pool(self) -> Any:
        """Return the memory pool of this encoder's graphs; a pool ends with its last graph."""
        graphs = (padded.graphs for padded in self.padded.values())
        return next((recorded[0].pool() for recorded in graphs if recorded), None) or torch.cuda.graph_pool_handle()

    def select(
        self, hidden: Tensor, layers: Sequence[Any], args: FusedArgs, sequences: int, positions: Tensor | None
    ) -> PaddedEncoder:
        """Return the layers for a batch's sizes."""
        selected = None if positions is None else len(positions)
        sizes = pad_sizes(len(hidden), sequences, selected, args.max_seqlen)
        dropouts = tuple((key.threshold, key.positions is None) for key in args.mask_keys)
        signature = (sizes, args.shape, args.first_saved, dropouts, hidden.dtype)
        padded = self.padded.pop(signature, None)
        if padded is None:
            trained = range(args.first_saved, len(layers))
            for number in trained:
                if number not in self.gradients:
                    self.gradients[number] = LayerGradients.empty(layers[number])
            padded = PaddedEncoder(sizes, args, hidden, [self.gradients[number] for number in trained])
            if len(self.padded) == MAX_SIZES:
                del self.padded[next(iter(self.padded))]  # the one that was used longest ago
        self.padded[signature] = padded
        return padded


_encoders = WeakTensorMap[dict[Any, Encoder]]()
"""First parameter of an encoder → (number of layers, device) → its memory."""


def find_encoder(layers: Sequence[Any]) -> Encoder:
    """Return the memory of an encoder, made when it is first needed."""
    first = layers[0][0]
    encoders = _encoders.get(first)
    if encoders is None:
        encoders = _encoders[first] = {}
    key = (len(layers), first.device)
    if key not in encoders:
        encoders[key] = Encoder()
    return encoders[key]


def release_memory() -> None:
    """Free the memory and the graphs of all encoders; they are made anew when a training needs them."""
    _encoders.clear()


class FusedEncoder(torch.autograd.Function):
    """All layers, as `kernels/fused_encoder.py` calls them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, cu_seqlens: Tensor, positions: Tensor | None, args: FusedArgs, *parameters: Tensor
    ) -> Tensor:
        layers, shape = by_layer(parameters), args.shape
        if args.first_saved == shape.num_layers:  # no gradients
            inputs = layer_inputs(shape, (cu_seqlens, args.max_seqlen), positions, args.mask_keys)
            return forward_layers(hidden, layers, inputs, args.first_saved)[0]
        encoder, records = find_encoder(layers), hidden.is_cuda
        if encoder.is_pending:  # its memory is in use: this pass gets its own
            encoder, records = Encoder(), False
        padded = encoder.select(hidden, layers, args, len(cu_seqlens) - 1, positions)
        padded.load(hidden, cu_seqlens, positions, args.mask_keys)
        ctx.token = Pass()
        padded.pending = weakref.ref(ctx.token)
        ctx.padded, ctx.rows = padded, len(hidden)
        ctx.save_for_backward(*parameters)  # so that autograd notices changes
        selected = len(hidden) if positions is None else len(positions)
        return padded.forward(layers, ctx.token, encoder.pool() if records else None)[:selected]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        padded, layers, token = ctx.padded, by_layer(ctx.saved_tensors), ctx.token
        if token is None:
            raise RuntimeError("an encoder's states were differentiated twice; compute them again instead")
        for parameter in ctx.saved_tensors:  # the gradient of an earlier micro-batch is overwritten now
            if parameter.grad is not None and parameter.grad.data_ptr() in padded.gradient_addresses:
                parameter.grad = parameter.grad.clone()
        dhidden = padded.backward(dy, layers, token)[: ctx.rows]
        ctx.token = padded.pending = None
        gradients: list[Tensor | None] = [None] * (PARAMS_PER_LAYER * padded.first_saved)
        for layer in padded.gradients:
            gradients += layer.by_parameter()
        return dhidden, None, None, None, *gradients
