"""An LSTM layer with projected states (Sak et al. 2014), for both directions at once.

PyTorch's own layer limits neither cells nor states, and its backward pass adds up gradients of the weights at every
step; here each of them is one product over all words. R words in time-major order (`models/rnn.py`), n of them in a
step; D inputs, C cells, P projected states. The leading dimension, 2, is the direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Clips(NamedTuple):
    """Largest absolute values; 0: no limit."""

    cell: float
    state: float


class ProjectedLSTM(nn.Module):
    """A forward and a backward layer; gates are in the order input, forget, cell, output."""

    def __init__(self, input_size: int, cell_size: int, projection_size: int, clips: Clips) -> None:
        super().__init__()
        self.clips = clips
        self.weight_ih = nn.Parameter(torch.empty(2, 4 * cell_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(2, 4 * cell_size, projection_size))
        self.bias = nn.Parameter(torch.empty(2, 4 * cell_size))
        self.weight_hr = nn.Parameter(torch.empty(2, projection_size, cell_size))

    def forward(self, inputs: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        """Read words, 2 × R × D → 2 × R × P; `batch_sizes`: words per step."""
        gates = torch.baddbmm(self.bias[:, None], inputs, self.weight_ih.transpose(1, 2))  # 2 R 4C
        states: Tensor = ProjectedSteps.apply(  # type: ignore[no-untyped-call]
            gates, self.weight_hh, self.weight_hr, batch_sizes, self.clips
        )
        return states


class ProjectedSteps(torch.autograd.Function):
    """The recurrence of a projected LSTM."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, hidden: Tensor, project: Tensor, batch_sizes: Sequence[int], clips: Clips
    ) -> Tensor:
        """Compute states 2 × R × P of the inputs' share in the gates, 2 × R × 4C, and of the recurrent weights."""
        size = project.shape[2]
        gates, by_hidden, by_project = gates.clone(), hidden.transpose(1, 2), project.transpose(1, 2)
        cells = gates.new_empty(2, gates.shape[1], size)
        states = gates.new_empty(2, gates.shape[1], project.shape[1])
        begin = before = 0
        for n in batch_sizes:
            rows, earlier = slice(begin, begin + n), slice(before, before + n)
            step, cell = gates[:, rows], cells[:, rows]
            if begin:
                step.baddbmm_(states[:, earlier], by_hidden)
            step[..., : 2 * size].sigmoid_()
            step[..., 2 * size : 3 * size].tanh_()
            step[..., 3 * size :].sigmoid_()
            write, keep, new, read = step.chunk(4, -1)
            torch.mul(write, new, out=cell)
            if begin:
                cell.addcmul_(keep, cells[:, earlier])
            if clips.cell:
                cell.clamp_(-clips.cell, clips.cell)
            state = torch.bmm(read * cell.tanh(), by_project)
            states[:, rows] = state.clamp_(-clips.state, clips.state) if clips.state else state
            before, begin = begin, begin + n
        ctx.save_for_backward(gates, cells, states, hidden, project)
        ctx.batch_sizes, ctx.clips = batch_sizes, clips
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates, recurrent and projecting weights; a value at its limit has none."""
        gates, cells, states, hidden, project = ctx.saved_tensors
        size, batch_sizes = project.shape[2], ctx.batch_sizes
        begins = [0, *torch.tensor(batch_sizes).cumsum(0).tolist()][:-1]
        earlier_cells, earlier_states = torch.zeros_like(cells), torch.zeros_like(states)
        for begin, n, later in zip(begins, batch_sizes, batch_sizes[1:], strict=False):
            rows = slice(begin + n, begin + n + later)
            earlier_cells[:, rows] = cells[:, begin : begin + later]
            earlier_states[:, rows] = states[:, begin : begin + later]
        write, keep, new, read = gates.view(2, -1, 4, size).unbind(2)
        squashed = cells.tanh()
        by_read = squashed * read * (1 - read)
        by_cell = read * (1 - squashed.square())
        of_cell = torch.stack(  # derivatives of a cell by the gates that it depends on
            [new * write * (1 - write), earlier_cells * keep * (1 - keep), write * (1 - new.square())], -2
        )
        if ctx.clips.cell:
            inside = cells.abs() < ctx.clips.cell
            of_cell, keep = of_cell * inside[:, :, None], keep * inside
        d_gates, d_states = torch.empty_like(gates), torch.empty_like(states)
        d_cell, d_state = cells.new_zeros(2, 0, size), states.new_zeros(2, 0, states.shape[2])
        for begin, n in zip(reversed(begins), reversed(batch_sizes), strict=True):
            rows = slice(begin, begin + n)
            total = d_states[:, rows]
            total.copy_(gradient[:, rows])
            total[:, : d_state.shape[1]] += d_state
            if ctx.clips.state:
                total *= states[:, rows].abs() < ctx.clips.state
            d_read = torch.bmm(total, project)  # 2 n C
            d_total = d_read * by_cell[:, rows]
            d_total[:, : d_cell.shape[1]] += d_cell
            step = d_gates[:, rows].view(2, n, 4, size)
            torch.mul(d_total[:, :, None], of_cell[:, rows], out=step[:, :, :3])
            torch.mul(d_read, by_read[:, rows], out=step[:, :, 3])
            d_cell = d_total * keep[:, rows]
            d_state = torch.bmm(d_gates[:, rows], hidden)
        d_hidden = torch.bmm(d_gates.transpose(1, 2), earlier_states)
        d_project = torch.bmm(d_states.transpose(1, 2), read * squashed)
        return d_gates, d_hidden, d_project, None, None
