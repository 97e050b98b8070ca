"""LSTMs over packed sequences, in one direction or in both, which take each step together; all systems run theirs here.

PyTorch's LSTM runs one direction after the other on packed sequences, limits neither cells nor states, and its backward
pass adds up a gradient of the weights at every step. Here each step is a product for both directions, and the gradient
of the weights is one product over all words. Modules of type `nn.LSTM` hold weights; `run_bilstm` calls them
where they are faster.

R words in `TimeMajor` order, n of them in a step; D inputs, C cells, H states per direction. The leading dimension, 2
or 1, is the direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from bertwright.kernels.cpu_linear import TILE
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout, linear
from bertwright.kernels.lstm_bf16 import NativeLstmSteps, uses_native_lstm
from bertwright.models.packing import TimeMajor


class BiLSTM(nn.Module):
    """A stack of bidirectional LSTMs with dropout before, between and after its layers."""

    def __init__(self, input_size: int, size: int, num_layers: int) -> None:
        """Build `num_layers` layers; `size` is the number of outputs per word, half of them from each direction."""
        super().__init__()
        if size % 2:
            raise ValueError(f"BiLSTM size: expected an even number, got {size}; each direction gives half of it")
        self.layers = nn.ModuleList(
            nn.LSTM(size if number else input_size, size // 2, bidirectional=True) for number in range(num_layers)
        )

    def forward(self, words: Tensor, lengths: Sequence[int], drop: Dropout | None) -> Tensor:
        """Encode words, R × D → R × size, in the same order; `lengths` (B): words per sequence, at least 1."""
        order = TimeMajor.of(np.asarray(lengths, dtype=np.int64), words.device)
        in_order = drop and drop.select(order.order)  # dropout depends on the word, not on the order
        packed = order.pack(words)
        for site, layer in enumerate(self.layers):
            packed = run_bilstm(cast(nn.LSTM, layer), dropout(packed, in_order, site), order)
        return dropout(order.unpack(packed), drop, len(self.layers))


def run_bilstm(layer: nn.LSTM, words: Tensor, order: TimeMajor) -> Tensor:
    """Compute the states of a bidirectional layer of `nn.LSTM`, R × D → R × 2H, in `order`."""
    # PyTorch's own loop is faster without a graph on a CPU, and on a GPU, where cuDNN has gradients in training alone.
    is_fast = not torch.is_grad_enabled() or (words.is_cuda and layer.training)
    if is_fast and words.dtype == torch.float32:
        return cast(Tensor, layer(PackedSequence(words, order.batch_sizes))[0].data)
    return order.join_directions(run_directions(layer, words, order).states)


def run_directions(layer: nn.LSTM, words: Tensor, order: TimeMajor) -> LstmValues:
    """Compute states and cells of a bidirectional layer of `nn.LSTM`, R × D → 2 × R × H each.

    Row r of either direction belongs to its own step of `order`, so that a sequence's last step has one row in both.
    """
    suffixes = ("l0", "l0_reverse")
    inputs, hidden, bias, more_bias = (
        [getattr(layer, f"{name}_{suffix}") for suffix in suffixes]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    weights = LstmWeights(inputs, torch.stack(bias) + torch.stack(more_bias), torch.stack(hidden))
    return run_layer(order.both_directions(words), weights, order.batch_sizes.tolist(), NO_CLIPS)


def run_lstm(
    layer: nn.LSTM, words: Tensor, batch_sizes: Sequence[int], hidden: Tensor, first: LstmValues | None, max_steps: int
) -> LstmValues:
    """Run a layer of `nn.LSTM` with other weights of its states, R × D → R × H states and cells.

    `hidden`: these weights, 4C × H; `first`: values before the first step, a row for each sequence or more; None: 0.
    Gradients flow back over at most `max_steps` steps: the values from which the steps after them start are constants.
    """
    inputs, bias, more_bias = map(layer.get_parameter, ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"))
    weights = LstmWeights([inputs], (bias + more_bias)[None], hidden[None])
    values = run_layer(words[None], weights, batch_sizes, NO_CLIPS, first, max_steps)
    return LstmValues(*(value[0] for value in values))


class LstmValues(NamedTuple):
    """States and cells of words, or of sequences before a step; the last two dimensions are rows × H."""

    states: Tensor
    cells: Tensor

    def at_ends(self, order: TimeMajor) -> LstmValues:
        """Return the values after the last step of each sequence, both directions side by side, B × 2H."""
        return LstmValues(*(values[:, order.last].transpose(0, 1).flatten(1) for values in self))

    def detach_last(self, rows: int) -> LstmValues:
        """Return the values of the last rows, without their gradients."""
        return LstmValues(*(values[..., values.shape[-2] - rows :, :].detach() for values in self))


class Clips(NamedTuple):
    """Largest absolute values; 0: no limit."""

    cell: float
    state: float


NO_CLIPS = Clips(0.0, 0.0)
MANY_INPUTS = 512  # from here on, two products take less time than a copy of both directions' weights and one product


class LstmWeights(NamedTuple):
    """Weights of a layer; in each, the gates i, f, g, o one after the other."""

    inputs: Sequence[Tensor]
    """Of the inputs, 4C × D for each direction."""
    bias: Tensor
    """2 × 4C."""
    hidden: Tensor
    """Of the states, 2 × 4C × H."""
    project: Tensor | None = None
    """From cells to states, 2 × H × C; None for an LSTM without, where H is C."""

    def pad(self) -> LstmWeights:
        """Return the weights with zeros up to multiples of TILE; more cells and states are 0 at every step."""
        (directions, rows, size), inputs = self.hidden.shape, self.inputs[0].shape[1]
        more_inputs, more_cells, more_states = (-count % TILE for count in (inputs, rows // 4, size))
        if not (more_inputs or more_cells or more_states):
            return self

        def by_gate(weight: Tensor, more_columns: int) -> Tensor:
            return F.pad(weight.view(directions, 4, rows // 4, -1), (0, more_columns, 0, more_cells)).flatten(1, 2)

        project = self.project
        return LstmWeights(
            by_gate(torch.stack([*self.inputs]), more_inputs).unbind(),
            by_gate(self.bias, 0)[:, :, 0],
            by_gate(self.hidden, more_states),
            None if project is None else F.pad(project, (0, more_cells, 0, more_states)),
        )


def run_layer(
    words: Tensor,
    weights: LstmWeights,
    batch_sizes: Sequence[int],
    clips: Clips,
    first: LstmValues | None = None,
    max_steps: int | None = None,
) -> LstmValues:
    """Compute the states and cells of a layer, 2 × R × D → 2 × R × H and C; see `run_lstm`, which has one direction.

    bfloat16 words: products are computed in bfloat16 and added up in float32; states and cells are float32.
    """
    size, cells = weights.hidden.shape[2], weights.bias.shape[1] // 4
    if uses_native_lstm(words, weights.hidden):
        weights = weights.pad()
        words = pad_columns(words, weights.inputs[0].shape[1])
    inputs, bias = weights.inputs, weights.bias
    if len(words) == 2 and words.dtype != torch.bfloat16 and words.shape[2] < MANY_INPUTS:
        gates = [*torch.baddbmm(bias[:, None], words, torch.stack([*inputs]).transpose(1, 2))]  # R 4C
    else:
        gates = [linear(*direction) for direction in zip(words, inputs, bias, strict=True)]
    if first is not None:
        sizes = weights.hidden.shape[2], weights.bias.shape[1] // 4
        first = LstmValues(*(pad_columns(values, n) for values, n in zip(first, sizes, strict=True)))
    max_steps = max_steps or len(batch_sizes)
    parts, begin = list[LstmValues](), 0
    for at in range(0, len(batch_sizes), max_steps):
        steps = batch_sizes[at : at + max_steps]
        rows = slice(begin, begin := begin + sum(steps))
        part = run_steps([by_inputs[rows] for by_inputs in gates], weights.hidden, weights.project, steps, clips, first)
        first = part.detach_last(steps[-1])
        parts.append(part)
    joined = (values[0] if len(parts) == 1 else torch.cat(values, 1) for values in zip(*parts, strict=True))
    return LstmValues(*(values[..., :n] for values, n in zip(joined, (size, cells), strict=True)))


def as_factor(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values as the products of a model read them: in bfloat16 if that is its `dtype`, otherwise as they are."""
    return values.to(dtype) if dtype == torch.bfloat16 else values


def pad_columns(values: Tensor, columns: int) -> Tensor:
    """Append zeros to rows up to a number of columns."""
    missing = columns - values.shape[-1]
    return F.pad(values, (0, missing)) if missing else values


class ProjectedLSTM(nn.Module):
    """A forward and a backward layer with projected states (Sak et al. 2014), and limits of cells and states."""

    def __init__(self, input_size: int, cell_size: int, projection_size: int, clips: Clips) -> None:
        super().__init__()
        self.clips = clips
        self.weight_ih = nn.Parameter(torch.empty(2, 4 * cell_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(2, 4 * cell_size, projection_size))
        self.bias = nn.Parameter(torch.empty(2, 4 * cell_size))
        self.weight_hr = nn.Parameter(torch.empty(2, projection_size, cell_size))

    def forward(self, inputs: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        """Read words, 2 × R × D → 2 × R × H; `batch_sizes`: words per step."""
        weights = LstmWeights(self.weight_ih.unbind(), self.bias, self.weight_hh, self.weight_hr)
        return run_layer(inputs, weights, batch_sizes, self.clips).states


def run_steps(
    gates: Sequence[Tensor],
    hidden: Tensor,
    project: Tensor | None,
    batch_sizes: Sequence[int],
    clips: Clips,
    first: LstmValues | None = None,
) -> LstmValues:
    """Compute states, 2 × R × H, and cells, 2 × R × C.

    `gates`: the inputs' share in them, R × 4C for each direction; `hidden`: weights of the states, 2 × 4C × H;
    `project`: weights from cells to states, 2 × H × C, or None for an LSTM without, where H is C; `first`: values
    before the first step, a row for each of its words or more, which get no gradients; None: 0.
    """
    if first is not None:
        first = LstmValues(*(values.view(-1, *values.shape[-2:])[:, : batch_sizes[0]] for values in first))
    if uses_native_lstm(gates[0], hidden):
        values = NativeLstmSteps.apply(torch.stack([*gates]), hidden, project, batch_sizes, clips, first)  # type: ignore[no-untyped-call]
    else:
        values = LstmSteps.apply(hidden, project, batch_sizes, clips, first, *gates)  # type: ignore[no-untyped-call]
    return LstmValues(*values)


class LstmSteps(torch.autograd.Function):
    """The recurrence of an LSTM, with gates i, f, g, o as in `nn.LSTM`.

    Products have the dtype of the inputs' share; gates, states and all else have the dtype of the weights.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        project: Tensor | None,
        batch_sizes: Sequence[int],
        clips: Clips,
        first: LstmValues | None,
        *by_inputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute states and cells; see `run_steps`."""
        ctx.dtype, size = by_inputs[0].dtype, by_inputs[0].shape[1] // 4
        gates, by_hidden = torch.stack(by_inputs).to(hidden.dtype), hidden.transpose(1, 2).to(ctx.dtype)
        hidden, by_project = hidden.to(ctx.dtype), None if project is None else project.transpose(1, 2).to(ctx.dtype)
        cells = gates.new_empty(*gates.shape[:2], size)
        states = gates.new_empty(*gates.shape[:2], hidden.shape[2])
        parts, earlier = (gates, *gates.chunk(4, -1), gates[..., : 2 * size], cells, states), first
        for n, *step in zip(batch_sizes, *(torch.split(part, [*batch_sizes], 1) for part in parts), strict=True):
            total, i, f, g, o, i_and_f, cell, state = step
            if earlier is not None:
                before = LstmValues(*(values[:, :n] for values in earlier))
                if total.dtype == ctx.dtype:
                    total.baddbmm_(before.states, by_hidden)
                else:
                    total += torch.bmm(before.states.to(ctx.dtype), by_hidden)
            i_and_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(i, g, out=cell)
            if earlier is not None:
                cell.addcmul_(f, before.cells)
            if clips.cell:
                cell.clamp_(-clips.cell, clips.cell)
            output = o * cell.tanh()
            state.copy_(output if by_project is None else torch.bmm(output.to(ctx.dtype), by_project))
            if clips.state:
                state.clamp_(-clips.state, clips.state)
            earlier = LstmValues(state, cell)
        ctx.save_for_backward(gates, cells, states, hidden, project)
        ctx.batch_sizes, ctx.clips, ctx.first = batch_sizes, clips, first
        ctx.set_materialize_grads(False)
        return states, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_states: Tensor | None, by_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates and weights; a value at its limit has none."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        gates, cells, states, hidden, project = saved
        size, batch_sizes = cells.shape[2], ctx.batch_sizes

        def multiply(left: Tensor, right: Tensor) -> Tensor:
            return torch.bmm(left.to(ctx.dtype), right.to(ctx.dtype)).to(states.dtype)

        first_states, first_cells = ctx.first or (None, None)
        earlier_states = values_one_step_before(states, batch_sizes, first_states)
        earlier_cells = values_one_step_before(cells, batch_sizes, first_cells)
        i, f, g, o = gates.chunk(4, -1)
        squashed = cells.tanh()
        by_gate = squashed * o * (1 - o)  # derivative of o · tanh(cell) by the output gate
        by_cell = o * (1 - squashed.square())  # its derivative by the cell
        # Derivatives of a cell by its gates i, f, g.
        of_cell = torch.stack([g * i * (1 - i), earlier_cells * f * (1 - f), i * (1 - g.square())], -2)
        if ctx.clips.cell:
            inside = cells.abs() < ctx.clips.cell
            of_cell, f = of_cell * inside[:, :, None], f * inside
        d_gates = gates.new_empty(*cells.shape[:2], 4, size)
        d_states = torch.zeros_like(states) if by_states is None else by_states.clone()
        d_state, d_cell = states[:, :0], cells[:, :0]
        end = cells.shape[1]
        for n in reversed(batch_sizes):
            rows, end = slice(end - n, end), end - n
            total = d_states[:, rows]
            total[:, : d_state.shape[1]] += d_state
            if ctx.clips.state:
                total *= states[:, rows].abs() < ctx.clips.state
            d_output = total if project is None else multiply(total, project)  # 2 n C
            d_total = d_output * by_cell[:, rows]
            d_total[:, : d_cell.shape[1]] += d_cell
            if by_cells is not None:
                d_total += by_cells[:, rows]
            torch.mul(d_total[:, :, None], of_cell[:, rows], out=d_gates[:, rows, :3])
            torch.mul(d_output, by_gate[:, rows], out=d_gates[:, rows, 3])
            d_cell = d_total * f[:, rows]
            d_state = multiply(d_gates[:, rows].flatten(2), hidden)
        flat = d_gates.flatten(2).to(ctx.dtype)
        d_hidden = multiply(flat.transpose(1, 2), earlier_states)
        d_project = None if project is None else multiply(d_states.transpose(1, 2), o * squashed)
        return d_hidden, d_project, None, None, None, *flat


def values_one_step_before(values: Tensor, batch_sizes: Sequence[int], first: Tensor | None) -> Tensor:
    """Return the values of each word's predecessor, 2 × R × any size; before the first step `first`, or 0."""
    earlier, begin = torch.zeros_like(values), 0
    if first is not None:
        earlier[:, : batch_sizes[0]] = first
    for n, later in pairwise(batch_sizes):
        earlier[:, begin + n : begin + n + later] = values[:, begin : begin + later]
        begin += n
    return earlier
