"""A bidirectional LSTM over packed sequences: both directions take each step together.

PyTorch's LSTM runs one direction after the other on packed sequences, and its backward pass adds up a gradient of the
weights at every step. Here each step is a product for both directions, and the gradient of the weights is one product
over all words. R words in `TimeMajor` order, n of them in a step; D inputs, H states per direction.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertwright.kernels.ffi import apply
from bertwright.models.rnn import TimeMajor


def run_bilstm(layer: nn.LSTM, words: Tensor, order: TimeMajor) -> Tensor:
    """Compute the states of a bidirectional layer of `nn.LSTM`, R × D → R × 2H, in `order`."""
    suffixes = ("l0", "l0_reverse")
    inputs, hidden, bias, more_bias = (
        torch.stack([getattr(layer, f"{name}_{suffix}") for suffix in suffixes])
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    both = torch.stack([words, words.index_select(0, order.mirror)])  # 2 R D, the second one from the end
    gates = torch.baddbmm((bias + more_bias)[:, None], both, inputs.transpose(1, 2))  # 2 R 4H
    forward, backward = apply(LstmSteps, gates, hidden, order.batch_sizes.tolist())
    return torch.cat([forward, backward.index_select(0, order.mirror)], 1)


class LstmSteps(torch.autograd.Function):
    """The recurrence of an LSTM, with gates i, f, g, o as in `nn.LSTM`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, batch_sizes: list[int]) -> Tensor:
        """Compute states 2 × R × H of the inputs' share in the gates, 2 × R × 4H, and weights 2 × 4H × H."""
        size = weight.shape[2]
        gates, transposed = gates.clone(), weight.transpose(1, 2).contiguous()
        cells, states = (gates.new_empty(*gates.shape[:2], size) for _ in range(2))
        begin = before = 0  # of this step, and of the step before it
        for n in batch_sizes:
            step = gates[:, begin : begin + n]
            if begin:
                step.baddbmm_(states[:, before : before + n], transposed)
            step[..., : 2 * size].sigmoid_()
            step[..., 2 * size : 3 * size].tanh_()
            step[..., 3 * size :].sigmoid_()
            i, f, g, o = step.chunk(4, -1)
            cell = torch.mul(i, g, out=cells[:, begin : begin + n])
            if begin:
                cell.addcmul_(f, cells[:, before : before + n])
            torch.mul(o, cell.tanh(), out=states[:, begin : begin + n])
            before, begin = begin, begin + n
        ctx.save_for_backward(gates, cells, states, weight)
        ctx.batch_sizes = batch_sizes
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates and weights."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        gates, cells, states, weight = saved
        size, batch_sizes = weight.shape[2], ctx.batch_sizes
        earlier = torch.zeros_like(cells)  # cells one step before; 0 before the first one
        previous = torch.zeros_like(states)
        begins = [0]
        for n, later in pairwise(batch_sizes):
            begin = begins[-1]
            earlier[:, begin + n : begin + n + later] = cells[:, begin : begin + later]
            previous[:, begin + n : begin + n + later] = states[:, begin : begin + later]
            begins.append(begin + n)
        i, f, g, o = gates.chunk(4, -1)
        squashed = cells.tanh()
        by_state = squashed * o * (1 - o)  # derivative of a state by its output gate
        by_cell = o * (1 - squashed.square())  # derivative of a state by its cell
        # Derivatives of a cell by its gates i, f, g.
        local = torch.stack([g * i * (1 - i), earlier * f * (1 - f), i * (1 - g.square())], -2)
        d_gates = gates.new_empty(*cells.shape[:2], 4, size)
        d_state, d_cell = (gradient.new_zeros(2, 0, size) for _ in range(2))
        for n, begin in zip(reversed(batch_sizes), reversed(begins), strict=True):
            rows = slice(begin, begin + n)
            total = gradient[:, rows].clone()
            total[:, : d_state.shape[1]] += d_state
            d_total = total * by_cell[:, rows]
            d_total[:, : d_cell.shape[1]] += d_cell
            torch.mul(d_total[:, :, None], local[:, rows], out=d_gates[:, rows, :3])
            torch.mul(total, by_state[:, rows], out=d_gates[:, rows, 3])
            d_cell = d_total * f[:, rows]
            d_state = torch.bmm(d_gates[:, rows].flatten(2), weight)
        flat = d_gates.flatten(2)
        return flat, torch.bmm(flat.transpose(1, 2), previous), None
