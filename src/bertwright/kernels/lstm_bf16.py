"""The recurrence of an LSTM in bfloat16 on a CPU, as native kernels (`lstm.h`).

R words in `TimeMajor` order, C cells, H states; the leading dimension of size D, 2 or 1, is the direction. Products
read bfloat16 and add up in float32; gates, cells, states and the gradients of weights are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.cpu_linear import TILE, is_tile_aligned, linear_backward
from bertwright.kernels.ffi import bf16_isa, call, check, use_native


class LstmArgs(NamedTuple):
    """Sizes of a recurrence, and largest absolute values of cells and states (0: no limit)."""

    directions: int
    words: int
    cells: int
    states: int
    steps: int
    batch_sizes: Tensor
    cell_clip: float
    state_clip: float


class LstmForward(NamedTuple):
    """What `lstm_forward` reads and writes."""

    inputs: Tensor
    hidden: Tensor
    project: Tensor | None
    first_states: Tensor | None
    first_cells: Tensor | None
    gates: Tensor
    cells: Tensor
    states: Tensor
    earlier: Tensor
    outputs: Tensor | None


class LstmBackward(NamedTuple):
    """What `lstm_backward` reads and writes."""

    gates: Tensor
    cells: Tensor
    states: Tensor
    hidden: Tensor
    project: Tensor | None
    first_cells: Tensor | None
    by_states: Tensor | None
    by_cells: Tensor | None
    d_gates: Tensor
    d_states: Tensor | None


def uses_native_lstm(gates: Tensor, hidden: Tensor) -> bool:
    """Return whether native kernels compute a recurrence from these shares of the inputs, D × R × 4C."""
    fits = gates.dtype == torch.bfloat16 and hidden.dtype == torch.float32
    return fits and use_native(gates) and bf16_isa() is not None


class NativeLstmSteps(torch.autograd.Function):
    """The recurrence; see `run_steps` in `models/packed_lstm.py`. C and H are multiples of TILE."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor,
        project: Tensor | None,
        batch_sizes: Sequence[int],
        clips: tuple[float, float],
        first: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute states D × R × H and cells D × R × C, both float32."""
        (directions, words, gate_size), (_, _, size) = inputs.shape, hidden.shape
        cells = gate_size // 4
        sizes = cells, size
        check(is_tile_aligned(*sizes), "lstm: expected multiples of {} as cells and states, got {}", TILE, sizes)
        check(hidden.shape == (directions, gate_size, size), "lstm: got weights {} for {}", hidden.shape, inputs.shape)
        if project is None:
            check(cells == size, "lstm: expected as many states as cells, got {} and {}", size, cells)
        else:
            check(project.shape == (directions, size, cells), "lstm: got a projection {}", project.shape)
        check(sum(batch_sizes) == words and min(batch_sizes) > 0, "lstm: got steps {} for {} words", batch_sizes, words)
        check(sorted(batch_sizes, reverse=True) == [*batch_sizes], "lstm: got growing steps {}", batch_sizes)
        first_states, first_cells = (values.contiguous() for values in first) if first else (None, None)
        if first_states is not None and first_cells is not None:
            shapes = (first_states.shape, first_cells.shape)
            check(shapes == tuple((directions, batch_sizes[0], n) for n in (size, cells)), "lstm: got first {}", shapes)
        args = LstmArgs(directions, words, cells, size, len(batch_sizes), torch.tensor(batch_sizes), *clips)
        state_values, cell_values = (hidden.new_empty(directions, words, n) for n in (size, cells))
        gates, earlier = hidden.new_empty(inputs.shape), new_rows(inputs, directions * words, size)
        outputs = None if project is None else new_rows(inputs, directions * words, cells)
        weights = hidden.contiguous(), None if project is None else project.contiguous()
        given = LstmForward(
            inputs.contiguous(), *weights, first_states, first_cells, gates, cell_values, state_values, earlier, outputs
        )
        call("lstm_forward", args, given)
        ctx.save_for_backward(gates, cell_values, state_values, *weights, first_cells, earlier, outputs)
        ctx.args = args
        ctx.set_materialize_grads(False)
        return state_values, cell_values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_states: Tensor | None, by_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs, bfloat16, and of weights; a value at its limit has none."""
        gates, cells, states, hidden, project, first_cells, earlier, outputs = ctx.saved_tensors
        args = ctx.args
        d_gates = new_rows(earlier, args.directions * args.words, 4 * args.cells)
        d_states = None if project is None else new_rows(earlier, args.directions * args.words, args.states)
        by_states, by_cells = (None if v is None else v.contiguous() for v in (by_states, by_cells))
        call(
            "lstm_backward",
            args,
            LstmBackward(gates, cells, states, hidden, project, first_cells, by_states, by_cells, d_gates, d_states),
        )
        d_hidden = weight_gradients(d_gates, earlier, hidden, args.words)
        d_project = None if d_states is None else weight_gradients(d_states, outputs, project, args.words)
        by_inputs = d_gates[: args.directions * args.words].view(args.directions, args.words, -1)
        return by_inputs, d_hidden, d_project, None, None, None


def new_rows(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return a new matrix; kernels read TILE rows at once, so that more rows follow, which do not count."""
    return like.new_empty(rows + TILE, columns)


def weight_gradients(dy: Tensor, x: Tensor, weights: Tensor, words: int) -> Tensor:
    """Compute dyᵀ · x of each direction in float32; rows of `dy` and `x`: one direction's, then the other's."""
    starts = range(0, len(weights) * words, words)
    parts = [
        linear_backward(dy[at : at + words], x[at : at + words], weight, (False, True, False))[1]
        for at, weight in zip(starts, weights, strict=True)
    ]
    return torch.stack([part for part in parts if part is not None])
