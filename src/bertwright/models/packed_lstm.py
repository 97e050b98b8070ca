"""LSTMs over packed sequences, in one direction or in both, which take each step together.

PyTorch's LSTM runs one direction after the other on packed sequences, limits neither cells nor states, and its backward
pass adds up a gradient of the weights at every step. Here each step is a product for both directions, and the gradient
of the weights is one product over all words. R words in `TimeMajor` order, n of them in a step; D inputs, C cells, H
states per direction. The leading dimension, 2 or 1, is the direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertwright.models.rnn import TimeMajor


def run_bilstm(layer: nn.LSTM, words: Tensor, order: TimeMajor) -> Tensor:
    """Compute the states of a bidirectional layer of `nn.LSTM`, R × D → R × 2H, in `order`."""
    return order.join_directions(run_directions(layer, words, order).states)


def run_directions(layer: nn.LSTM, words: Tensor, order: TimeMajor) -> LstmValues:
    """Compute states and cells of a bidirectional layer of `nn.LSTM`, R × D → 2 × R × H each.

    Row r of either direction belongs to its own step of `order`, so that a sequence's last step has one row in both.
    """
    suffixes = ("l0", "l0_reverse")
    inputs, hidden, bias, more_bias = (
        torch.stack([getattr(layer, f"{name}_{suffix}") for suffix in suffixes])
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    both = order.both_directions(words)
    gates = torch.baddbmm((bias + more_bias)[:, None], both, inputs.transpose(1, 2))  # 2 R 4C
    return run_steps(gates, hidden, None, order.batch_sizes.tolist(), NO_CLIPS)


def run_lstm(
    layer: nn.LSTM, words: Tensor, batch_sizes: Sequence[int], hidden: Tensor, first: LstmValues | None, max_steps: int
) -> LstmValues:
    """Run a layer of `nn.LSTM` with other weights of its states, R × D → R × H states and cells.

    `hidden`: these weights, 4C × H; `first`: values before the first step, a row for each sequence or more; None: 0.
    Gradients flow back over at most `max_steps` steps: the values from which the steps after them start are constants.
    """
    inputs, bias, more_bias = map(layer.get_parameter, ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"))
    gates = torch.addmm(bias + more_bias, words, inputs.T)[None]  # 1 R 4C
    parts, begin = list[LstmValues](), 0
    for at in range(0, len(batch_sizes), max_steps):
        sizes = batch_sizes[at : at + max_steps]
        rows = slice(begin, begin := begin + sum(sizes))
        part = run_steps(gates[:, rows], hidden[None], None, sizes, NO_CLIPS, first)
        first = part.detach_last(sizes[-1])
        parts.append(part)
    return LstmValues(*(torch.cat(values, 1)[0] for values in zip(*parts, strict=True)))


class LstmValues(NamedTuple):
    """States and cells of words, or of sequences before a step; the last two dimensions are rows × H."""

    states: Tensor
    cells: Tensor

    def detach_last(self, rows: int) -> LstmValues:
        """Return the values of the last rows, without their gradients."""
        return LstmValues(*(values[..., values.shape[-2] - rows :, :].detach() for values in self))


class Clips(NamedTuple):
    """Largest absolute values; 0: no limit."""

    cell: float
    state: float


NO_CLIPS = Clips(0.0, 0.0)


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
        gates = torch.baddbmm(self.bias[:, None], inputs, self.weight_ih.transpose(1, 2))  # 2 R 4C
        return run_steps(gates, self.weight_hh, self.weight_hr, batch_sizes, self.clips).states


def run_steps(
    gates: Tensor,
    hidden: Tensor,
    project: Tensor | None,
    batch_sizes: Sequence[int],
    clips: Clips,
    first: LstmValues | None = None,
) -> LstmValues:
    """Compute states, 2 × R × H, and cells, 2 × R × C.

    `gates`: the inputs' share in them, 2 × R × 4C; `hidden`: weights of the states, 2 × 4C × H; `project`: weights
    from cells to states, 2 × H × C, or None for an LSTM without, where H is C; `first`: values before the first step,
    a row for each of its words or more, which get no gradients; None: 0.
    """
    if first is not None:
        first = LstmValues(*(values.view(-1, *values.shape[-2:])[:, : batch_sizes[0]] for values in first))
    return LstmValues(*LstmSteps.apply(gates, hidden, project, batch_sizes, clips, first))  # type: ignore[no-untyped-call]


class LstmSteps(torch.autograd.Function):
    """The recurrence of an LSTM, with gates i, f, g, o as in `nn.LSTM`."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        hidden: Tensor,
        project: Tensor | None,
        batch_sizes: Sequence[int],
        clips: Clips,
        first: LstmValues | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute states and cells; see `run_steps`."""
        size = gates.shape[2] // 4
        gates, by_hidden = gates.clone(), hidden.transpose(1, 2).contiguous()
        cells = gates.new_empty(*gates.shape[:2], size)
        states = gates.new_empty(*gates.shape[:2], hidden.shape[2])
        begin, earlier = 0, first
        for n in batch_sizes:
            rows = slice(begin, begin + n)
            step, cell = gates[:, rows], cells[:, rows]
            if earlier is not None:
                step.baddbmm_(earlier.states[:, :n], by_hidden)
            step[..., : 2 * size].sigmoid_()
            step[..., 2 * size : 3 * size].tanh_()
            step[..., 3 * size :].sigmoid_()
            i, f, g, o = step.chunk(4, -1)
            torch.mul(i, g, out=cell)
            if earlier is not None:
                cell.addcmul_(f, earlier.cells[:, :n])
            if clips.cell:
                cell.clamp_(-clips.cell, clips.cell)
            output = o * cell.tanh()
            states[:, rows] = output if project is None else torch.bmm(output, project.transpose(1, 2))
            if clips.state:
                states[:, rows].clamp_(-clips.state, clips.state)
            earlier, begin = LstmValues(states[:, rows], cell), begin + n
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
            d_output = total if project is None else torch.bmm(total, project)  # 2 n C
            d_total = d_output * by_cell[:, rows]
            d_total[:, : d_cell.shape[1]] += d_cell
            if by_cells is not None:
                d_total += by_cells[:, rows]
            torch.mul(d_total[:, :, None], of_cell[:, rows], out=d_gates[:, rows, :3])
            torch.mul(d_output, by_gate[:, rows], out=d_gates[:, rows, 3])
            d_cell = d_total * f[:, rows]
            d_state = torch.bmm(d_gates[:, rows].flatten(2), hidden)
        flat = d_gates.flatten(2)
        d_hidden = torch.bmm(flat.transpose(1, 2), earlier_states)
        d_project = None if project is None else torch.bmm(d_states.transpose(1, 2), o * squashed)
        return flat, d_hidden, d_project, None, None, None


def values_one_step_before(values: Tensor, batch_sizes: Sequence[int], first: Tensor | None) -> Tensor:
    """Return the values of each word's predecessor, 2 × R × any size; before the first step `first`, or 0."""
    earlier, begin = torch.zeros_like(values), 0
    if first is not None:
        earlier[:, : batch_sizes[0]] = first
    for n, later in pairwise(batch_sizes):
        earlier[:, begin + n : begin + n + later] = values[:, begin : begin + later]
        begin += n
    return earlier
