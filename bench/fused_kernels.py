"""Times of the native kernels beside torch's own operations, as a Markdown table.

    python bench/fused_kernels.py [threads]

Times are medians of runs in turn, forward and backward together, at T = 4,096 tokens: in float32, and where the machine
has bfloat16 units, in bfloat16 what is done otherwise there, and what one native call for all layers saves. The last
rows set one encoder layer against the matrix products in it: what is left between them is all the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.kernels import fused_ops
from bertwright.kernels.adamw import adamw_, gradient_norm
from bertwright.kernels.attention import attention
from bertwright.kernels.cpu import configure_malloc
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.ffi import bf16_isa
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.kernels.reference import AdamStep, EmbeddingTables, LayerNormParams
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.packing import pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.context import supports_bfloat16
from environment import describe_machine, keep_printed, make_parser, take_turns

TOKENS, LENGTH, VOCABULARY, MASKED, HEAD_SIZE = 4096, 128, 30522, 614, 64
DROPOUT = Dropout(0.1, seed=1)
EPS = 1e-12


Run = Callable[[], object]


def both(ours: Run, theirs: Run, runs: int = 9) -> tuple[float, float]:
    """Measure the median milliseconds of both, interleaved: bfloat16 units can be three times as fast for a moment."""
    times = take_turns({"ours": ours, "theirs": theirs}, 1 + runs)  # the first does not count
    medians = [1000 * statistics.median(times[name][1:]) for name in ("ours", "theirs")]
    return medians[0], medians[1]


def passing(dtype: torch.dtype, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Run:
    """Return a function that runs a forward and backward pass over random inputs."""
    leaves = [(0.1 * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]
    upstream = torch.randn_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, upstream)


def dense_layers(linear: Callable[..., Tensor], hidden: int, counts: Sequence[int]) -> Run:
    """Return a function that runs an encoder layer's dense layers for each number of tokens; weights are float32."""
    shapes = (hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)
    weights = [torch.randn(outer, intermediate, requires_grad=True) for intermediate, outer in shapes]

    def run() -> None:
        for tokens in counts:
            for weight in weights:
                x = torch.randn(1, weight.shape[1]).bfloat16().expand(tokens, -1).contiguous().requires_grad_()
                y = linear(x, weight)
                torch.autograd.grad(y, (x, weight), y)

    return run


def common_rows(hidden: int, dtype: torch.dtype) -> Iterator[tuple[str, Run, Run]]:
    """Yield name, ours and torch's of the kernels of both dtypes."""
    heads, wide = hidden // HEAD_SIZE, 4 * hidden
    labels = torch.randint(0, VOCABULARY, (MASKED,))
    starts = torch.arange(0, TOKENS + 1, LENGTH, dtype=torch.int32)
    new = partial(passing, dtype)

    def plain_attention(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(-1, LENGTH, 3, heads, HEAD_SIZE).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    def plain_loss(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, w, b), labels, reduction="sum")

    shapes = (TOKENS, wide), (wide,)
    own = new(lambda x, b: fused_ops.bias_gelu(x, b, False), *shapes)
    yield "bias + GELU", own, new(lambda x, b: F.gelu(x + b), *shapes)
    qkv = TOKENS, 3, heads, HEAD_SIZE
    own = new(lambda q: attention(q, starts, LENGTH, DROPOUT, 2), qkv)
    yield "attention with dropout, 32 × 128", own, new(plain_attention, qkv)
    loss_shapes = (MASKED, hidden), (VOCABULARY, hidden), (VOCABULARY,)
    own = new(lambda h, w, b: linear_cross_entropy(h, w, b, labels)[0], *loss_shapes)
    yield "vocabulary projection + loss, 614 rows", own, new(plain_loss, *loss_shapes)


def float32_rows(hidden: int) -> Iterator[tuple[str, Run, Run]]:
    """Yield name, ours and torch's of the kernels that are the same in all dtypes."""
    tokens, vector = (TOKENS, hidden), (hidden,)
    batch = pack([np.random.default_rng(0).integers(0, VOCABULARY, LENGTH) for _ in range(TOKENS // LENGTH)])
    ids = batch.input_ids, batch.packing.position_ids, torch.zeros_like(batch.input_ids)
    new = partial(passing, torch.float32)

    def embed(w: Tensor, p: Tensor, t: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return fused_ops.embed_norm(ids, EmbeddingTables(w, p, t), LayerNormParams(g, b, EPS), DROPOUT, 0)

    def plain_embed(w: Tensor, p: Tensor, t: Tensor, g: Tensor, b: Tensor) -> Tensor:
        summed = F.embedding(ids[0], w) + F.embedding(ids[1], p) + F.embedding(ids[2], t)
        return F.dropout(F.layer_norm(summed, vector, g, b, EPS), 0.1)

    def add_norm(x: Tensor, b: Tensor, r: Tensor, g: Tensor, c: Tensor) -> Tensor:
        return fused_ops.add_dropout_norm(x, b, r, LayerNormParams(g, c, EPS), DROPOUT, 1)

    def plain_add_norm(x: Tensor, b: Tensor, r: Tensor, g: Tensor, c: Tensor) -> Tensor:
        return F.layer_norm(r + F.dropout(x + b, 0.1), vector, g, c, EPS)

    shapes = tokens, vector, tokens, vector, vector
    yield "bias + dropout + residual + norm", new(add_norm, *shapes), new(plain_add_norm, *shapes)
    tables = (VOCABULARY, hidden), (512, hidden), (2, hidden), vector, vector
    yield "embeddings + norm + dropout", new(embed, *tables), new(plain_embed, *tables)
    numbers = AdamStep(1e-4, 0.9, 0.999, 1e-6, 0.01)
    flat = [torch.rand(VOCABULARY * hidden) for _ in range(4)]
    reference = torch.nn.Parameter(flat[0].clone())
    reference.grad = flat[1]
    optimizer = torch.optim.AdamW([reference], fused=True)
    yield "AdamW", lambda: adamw_(flat[:1], flat[1:2], flat[2:3], flat[3:], numbers), optimizer.step
    yield "norm of a gradient", lambda: gradient_norm(flat[:1]), lambda: flat[0].norm()


def bfloat16_rows(hidden: int) -> Iterator[tuple[str, Run, Run]]:
    """Yield name, ours and torch's of dense layers in bfloat16."""
    for tokens, counts in (("4,096", (TOKENS,)), ("416", (416,)), ("400, 401, … 419", range(400, 420))):
        own = dense_layers(fused_ops.linear, hidden, counts)
        plain = dense_layers(lambda x, weight: F.linear(x, weight.to(x.dtype)), hidden, counts)
        yield f"dense layers, {tokens} tokens", own, plain


def layer_row(hidden: int) -> tuple[float, float]:
    """Measure one encoder layer, and its matrix products alone."""
    heads, wide = hidden // HEAD_SIZE, 4 * hidden
    starts = torch.arange(0, TOKENS + 1, LENGTH, dtype=torch.int32)
    shapes = (3 * hidden, hidden), (hidden, hidden), (wide, hidden), (hidden, wide)

    def layer(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor, *vectors: Tensor) -> Tensor:
        bias_qkv, bias_out, bias_up, bias_down, w1, b1, w2, b2 = vectors
        packed = F.linear(x, qkv, bias_qkv).view(TOKENS, 3, heads, HEAD_SIZE)
        context = attention(packed, starts, LENGTH, DROPOUT, 1).view(TOKENS, hidden)
        x = fused_ops.add_dropout_norm(F.linear(context, out), bias_out, x, LayerNormParams(w1, b1, EPS), DROPOUT, 2)
        wide_states = fused_ops.bias_gelu(F.linear(x, up), bias_up, False)
        return fused_ops.add_dropout_norm(
            F.linear(wide_states, down), bias_down, x, LayerNormParams(w2, b2, EPS), DROPOUT, 3
        )

    vectors = [(3 * hidden,), (hidden,), (wide,), *[(hidden,)] * 5]
    new = partial(passing, torch.float32)
    products = [new(F.linear, (TOKENS, shape[1]), shape) for shape in shapes]
    return both(new(layer, (TOKENS, hidden), *shapes, *vectors), lambda: [product() for product in products])


def at_once(hidden: int, length: int) -> tuple[float, float]:
    """Measure six layers over 32 texts: in one native call per direction, and layer by layer."""
    config = BertConfig(VOCABULARY, hidden, num_layers=6, num_heads=hidden // HEAD_SIZE, intermediate_size=4 * hidden)
    encoder = BertEncoder(config, torch.bfloat16).train()
    initialize(encoder, truncated_normal(config.initializer_range), seed=1)
    weights = list(encoder.layers.parameters())
    batch = pack([np.arange(length)] * 32)

    def run(states: Callable[[], Tensor]) -> Run:
        return lambda: torch.autograd.grad(states().sum(), weights)

    return both(run(lambda: encoder(batch)), run(lambda: encoder.hidden_states(batch)[-1]), runs=25)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("threads", type=int, nargs="?", default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    configure_malloc()
    keep_printed(__file__)
    print(f"{describe_machine()}\n")
    for dtype, own_rows in ((torch.float32, float32_rows), (torch.bfloat16, bfloat16_rows)):
        if dtype == torch.bfloat16 and not supports_bfloat16(torch.device("cpu")):
            continue
        name = str(dtype).removeprefix("torch.")
        print(f"\n| H | {name}, forward + backward, ms | ours | torch | ratio |\n|---|---|---|---|---|")
        for hidden in (256, 768):
            for what, ours, theirs in chain(common_rows(hidden, dtype), own_rows(hidden)):
                own, other = both(ours, theirs)
                print(f"| {hidden} | {what} | {own:.1f} | {other:.1f} | {other / own:.1f}× |", flush=True)
    if bf16_isa() is not None:
        print("\n| H | six layers in bfloat16, ms | at once | layer by layer | ratio |\n|---|---|---|---|---|")
        for hidden, length in product((256, 768), (13, 128)):
            whole, one_by_one = at_once(hidden, length)
            row = f"32 × {length} tokens | {whole:.1f} | {one_by_one:.1f} | {one_by_one / whole:.2f}×"
            print(f"| {hidden} | {row} |", flush=True)
    print("\n| H | encoder layer, ms | its matrix products, ms | share |\n|---|---|---|---|")
    for hidden in (256, 512, 768):
        whole, products = layer_row(hidden)
        print(f"| {hidden} | {whole:.1f} | {products:.1f} | {100 * products / whole:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
