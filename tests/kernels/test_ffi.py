"""The C interface: the library describes it, and wrong arguments raise, also under `python -O`."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import namedtuple

import pytest
import torch

from bertwright.kernels import ffi, native_library
from bertwright.kernels.dropout import KEEP_ALL
from bertwright.kernels.reference import AdamStep

needs_native = pytest.mark.skipif(native_library.load_library("kernels") is None, reason="no C++ compiler")


def test_structures_have_the_layout_that_the_library_describes() -> None:
    interface = ffi.parse_interface("struct Key 24 uint32_t low double scale int64_t* positions")
    ctype = interface.structures["Key"].ctype
    assert [getattr(ctype, name).offset for name in ("low", "scale", "positions")] == [0, 8, 16]
    with pytest.raises(ValueError, match=r"Key.*16.*20"):
        ffi.parse_interface("struct Key 20 uint32_t low double scale")


@needs_native
def test_a_structure_without_the_fields_that_the_library_describes_raises() -> None:
    vectors = [torch.zeros(1)]
    extended = namedtuple("Extended", [*AdamStep._fields, "momentum"])(*range(9))
    with pytest.raises(ValueError, match=r"adamw, argument 6.*momentum"):
        ffi.call("adamw", vectors, vectors, vectors, vectors, torch.tensor([1]), 1, extended)


@needs_native
def test_a_tensor_of_another_dtype_in_a_structure_raises() -> None:
    key = KEEP_ALL._replace(positions=torch.zeros(3))
    with pytest.raises(ValueError, match=r"dropout, argument 2: positions: expected torch.int64, got torch.float32"):
        ffi.call("dropout", torch.float32, torch.zeros(3), key, torch.zeros(3), 3, 1)


@needs_native
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((torch.float32, 0.5, None, None, None, 1, 1), id="float for int64"),
        pytest.param((torch.float32, 0, 123, None, None, 1, 1), id="int for pointer"),
        pytest.param((torch.float32, 0, [1], None, None, 1, 1), id="list of int for pointers"),
    ],
)
def test_call_with_a_wrong_type_raises(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, AttributeError, ctypes.ArgumentError)):
        ffi.call("bias_gelu", *arguments)


@needs_native
def test_call_with_a_missing_argument_raises() -> None:
    with pytest.raises(TypeError, match=r"square_sum.*5.*4"):
        ffi.call("square_sum", [], torch.tensor([]), 0)


BAD_CALLS = {
    "bias_gelu of three dimensions": "ops.bias_gelu(rand(4, 3, 8), rand(8), False)",
    "bias_gelu of a transposed matrix": "ops.bias_gelu(rand(8, 4).T, rand(8), False)",
    "bias_gelu with a short bias": "ops.bias_gelu(rand(4, 8), rand(7), False)",
    "bias_gelu with gaps in the bias": "ops.bias_gelu(rand(4, 8), rand(16)[::2], False)",
    "add_dropout_norm of three dimensions": "norm(rand(4, 3, 8), rand(4, 3, 8))",
    "add_dropout_norm with a narrow residual": "norm(rand(4, 8), rand(4, 7))",
    "add_dropout_norm with a transposed residual": "norm(rand(4, 8), rand(8, 4).T)",
    "add_dropout_norm with another dtype": "norm(rand(4, 8), rand(4, 8).bfloat16())",
    "add_dropout_norm with a short weight": "norm(rand(4, 8), rand(4, 8), rand(7))",
    "add_dropout_norm at too few positions": "norm(rand(4, 8), rand(4, 8), dropout=at(torch.tensor([1, 2])))",
    "dropout of a transposed matrix": "ops.dropout(rand(4, 3).T, at(torch.tensor([1, 2, 3])), 0)",
    "dropout at int32 positions": "drop(torch.tensor([1, 2, 3], dtype=torch.int32))",
    "dropout at too few positions": "drop(torch.tensor([1, 2]))",
    "dropout at positions with gaps": "drop(torch.arange(6)[::2])",
    "dropout at positions of two dimensions": "drop(torch.tensor([[1], [2], [3]]))",
    "dropout of every element": "ops.dropout(rand(3, 4), Dropout(1.0, 5), 0)",
    "embed_norm with an id beyond the table": "embed([0, 9])",
    "embed_norm with a negative id": "embed([0, -1])",
    "embed_norm with int32 ids": "embed(torch.tensor([0, 1], dtype=torch.int32))",
    "embed_norm with ids with gaps": "embed(torch.arange(4)[::2])",
    "embed_norm with too few token types": "embed([0, 1], token_type_ids=torch.tensor([0]))",
    "embed_norm with tables of two widths": "embed([0, 1], token_type=rand(2, 7))",
    "embed_norm with tables of two dtypes": "embed([0, 1], token_type=rand(2, 8).bfloat16())",
    "embed_norm with a transposed table": "embed([0, 1], token_type=rand(8, 2).T)",
    "embed_norm with a short norm": "embed([0, 1], weight=rand(7))",
    "table_gradient with an id beyond the table": "ops.table_gradient(rand(2, 3), torch.tensor([0, 4]), (4, 3))",
    "table_gradient with a negative id": "ops.table_gradient(rand(2, 3), torch.tensor([0, -1]), (4, 3))",
    "table_gradient with too few ids": "ops.table_gradient(rand(2, 3), torch.tensor([0]), (4, 3))",
    "table_gradient of a narrow table": "ops.table_gradient(rand(2, 3), torch.tensor([0, 1]), (4, 2))",
    "table_gradient of bfloat16": "ops.table_gradient(rand(2, 3).bfloat16(), torch.tensor([0, 1]), (4, 3))",
    "attention with int64 boundaries": "attend(torch.tensor([0, 4]))",
    "attention beyond the tokens": "attend(torch.tensor([0, 5]).int())",
    "attention with descending boundaries": "attend(torch.tensor([0, 3, 2, 4]).int())",
    "attention with boundaries with gaps": "attend(torch.tensor([0, 0, 4, 4]).int()[::2])",
    "attention with boundaries of two dimensions": "attend(torch.tensor([[0], [4]]).int())",
    "attention without boundaries": "attend(torch.tensor([]).int())",
    "attention without values": "attend(torch.tensor([0, 4]).int(), rand(4, 2, 2, 8))",
    "attention without heads": "attend(torch.tensor([0, 4]).int(), rand(4, 3, 0, 8))",
    "attention with empty heads": "attend(torch.tensor([0, 4]).int(), rand(4, 3, 2, 0))",
    "attention of three dimensions": "attend(torch.tensor([0, 4]).int(), rand(4, 3, 8))",
    "attention of a transposed matrix": "attend(torch.tensor([0, 4]).int(), rand(4, 2, 3, 8).transpose(1, 2))",
    "cross_attention with another number of sequences": "cross(kv_starts=[0, 3, 6])",
    "cross_attention beyond the queries": "cross(q_starts=[0, 5])",
    "cross_attention beyond the keys": "cross(kv_starts=[0, 7])",
    "cross_attention with descending keys": "cross(q_starts=[0, 1, 2, 4], kv_starts=[0, 5, 3, 6])",
    "cross_attention with heads of another size": "cross(kv=rand(6, 2, 2, 16))",
    "cross_attention with another number of heads": "cross(kv=rand(6, 2, 3, 8))",
    "cross_attention without values": "cross(kv=rand(6, 1, 2, 8))",
    "cross_attention with keys of another dtype": "cross(kv=rand(6, 2, 2, 8).bfloat16())",
    "cross_attention with queries of two dimensions": "cross(q=rand(4, 16))",
    "cross entropy with a label beyond the vocabulary": "loss(torch.tensor([0, 3]))",
    "cross entropy with a negative label": "loss(torch.tensor([0, -1]))",
    "cross entropy with too few labels": "loss(torch.tensor([0]))",
    "cross entropy with int32 labels": "loss(torch.tensor([0, 1], dtype=torch.int32))",
    "cross entropy with a short bias": "loss(bias=rand(2))",
    "cross entropy with a bfloat16 bias": "loss(bias=rand(3).bfloat16())",
    "cross entropy with a short gradient of the bias": "loss(dbias=rand(2))",
    "cross entropy with a gradient of the bias as a matrix": "loss(dbias=rand(1, 3))",
    "cross entropy with a bfloat16 gradient of the bias": "loss(dbias=rand(3).bfloat16())",
    "cross entropy of three dimensions": "loss(logits=rand(2, 3, 4))",
    "cross entropy of a transposed matrix": "loss(logits=rand(3, 2).T)",
    "cross entropy of one row as two": "loss(logits=rand(1, 3).expand(2, 3))",
    "gradient_norm of bfloat16": "adamw.gradient_norm([rand(3).bfloat16()])",
    "gradient_norm of a transposed gradient": "adamw.gradient_norm([rand(3), rand(3, 4).T])",
    "adamw_ with a short moment": "adamw.adamw_([rand(3)], [rand(3)], [rand(2)], [rand(3)], STEP)",
    "adamw_ with too few gradients": "adamw.adamw_([rand(3)] * 2, [rand(3)], [rand(3)] * 2, [rand(3)] * 2, STEP)",
    "adamw_ with a bfloat16 gradient": "adamw.adamw_([rand(3)], [rand(3).bfloat16()], [rand(3)], [rand(3)], STEP)",
    "adamw_ of a bfloat16 parameter": "adamw.adamw_(*([rand(3).bfloat16()] for _ in range(4)), STEP)",
    "a transposed parameter": "adamw.adamw_(*([rand(3, 4).T] for _ in range(4)), STEP)",
    "adamw_rows_ with a narrow gradient": "update(gradient=sparse(rand(2, 2), 5, 2))",
    "adamw_rows_ with a gradient of single numbers": "update(gradient=rand(5, 3).to_sparse())",
    "adamw_rows_ with a bfloat16 gradient": "update(gradient=sparse(rand(2, 3).bfloat16(), 5, 3))",
    "adamw_rows_ with a short moment": "update(exp_avg=rand(4, 3))",
    "adamw_rows_ with a float64 moment": "update(exp_avg=rand(5, 3).double())",
    "adamw_rows_ with too few touched": "update(touched=torch.zeros(4, dtype=torch.uint8))",
    "adamw_rows_ with touched as bool": "update(touched=torch.zeros(5, dtype=torch.bool))",
    "transpose of float32": "cpu_linear.transpose(rand(4, 8))",
    "transpose of three dimensions": "cpu_linear.transpose(rand(4, 3, 8).bfloat16())",
    "transpose of a transposed matrix": "cpu_linear.transpose(rand(4, 8).bfloat16().T)",
}
BAD_BFLOAT16_CALLS = {
    "linear with a wide weight": "ops.linear(states(4, 32), rand(64, 64))",
    "linear with a short bias": "ops.linear(states(4, 64), rand(64, 64), rand(3))",
    "linear with a bias as a matrix": "ops.linear(states(4, 64), rand(64, 64), rand(64, 1))",
    "linear_forward with a cube as weight": "cpu_linear.linear_forward(states(4, 32), rand(32, 32, 32), None)",
    "linear_forward of float32": "cpu_linear.linear_forward(rand(4, 64), rand(64, 64), None)",
    "linear_forward of three dimensions": "cpu_linear.linear_forward(states(2, 4, 64), rand(64, 64), None)",
    "linear_forward of a transposed matrix": "cpu_linear.linear_forward(states(64, 4).T, rand(64, 64), None)",
    "linear_forward with a wide weight": "cpu_linear.linear_forward(states(4, 32), rand(64, 64), None)",
    "linear_forward with a transposed weight": "cpu_linear.linear_forward(states(4, 64), rand(64, 64).T, None)",
    "linear_forward with an unaligned weight": "cpu_linear.linear_forward(states(4, 40), rand(64, 40), None)",
    "linear_forward with a float64 weight": "cpu_linear.linear_forward(states(4, 64), rand(64, 64).double(), None)",
    "linear_backward with a narrow gradient": "linear_gradients(states(4, 32))",
    "linear_backward with a short gradient": "linear_gradients(states(3, 64))",
    "linear_backward with a float32 gradient": "linear_gradients(rand(4, 64))",
    "linear_backward with a transposed gradient": "linear_gradients(states(64, 4).T)",
    "linear_backward with a wide weight": "linear_gradients(states(4, 64), weight=rand(64, 96))",
    "encoder of float32": "encode(rand(4, 32))",
    "encoder of narrow states": "encode(states(4, 64))",
    "encoder with a parameter of another shape": "encode(parameters=[rand(3)] * 12)",
    "encoder with bfloat16 parameters": "encode(parameters=[value.bfloat16() for value in PARAMETERS])",
    "encoder with a parameter too few": "encode(parameters=PARAMETERS[:-1])",
    "encoder with a frozen bias": "encode(parameters=[rand(96, 32).requires_grad_(), *PARAMETERS[1:]])",
    "encoder with too few mask keys": "encode(mask_keys=KEYS[:2])",
    "encoder with mask keys at too few positions": "encode(mask_keys=[mask_key(at(torch.tensor([1])), 0)] * 3)",
    "encoder with heads of odd size": "encode(shape=SHAPE._replace(num_heads=3))",
    "encoder without layers": "encode(shape=SHAPE._replace(num_layers=0), parameters=[], mask_keys=[])",
    "encoder beyond the tokens": "encode(cu_seqlens=torch.tensor([0, 5]).int())",
    "encoder with int64 boundaries": "encode(cu_seqlens=torch.tensor([0, 4]))",
    "encoder at a position beyond the tokens": "encode(positions=torch.tensor([0, 4]))",
    "encoder at a negative position": "encode(positions=torch.tensor([0, -1]))",
    "encoder at int32 positions": "encode(positions=torch.tensor([0, 1]).int())",
    "encoder at positions of two dimensions": "encode(positions=torch.tensor([[0], [1]]))",
}
HARNESS = """
import torch
from bertwright.kernels import adamw, fused_ops as ops, cpu_linear
from bertwright.kernels.attention import attention, cross_attention
from bertwright.kernels.dropout import Dropout, mask_key
from bertwright.kernels.fused_encoder import EncoderShape, fused_encoder
from bertwright.kernels.linear_cross_entropy import cross_entropy_
from bertwright.kernels.reference import AdamStep
STEP = AdamStep(0.1, 0.9, 0.9, 1e-6, 0.0)
SHAPE = EncoderShape(1, 32, 64, 2, False, "gelu", 1e-12)
PARAMETERS = [torch.rand(shape) for shape in SHAPE.parameter_shapes]
KEYS = [mask_key(None, site) for site in range(3)]
rand = torch.rand
def states(*shape):
    return rand(*shape).bfloat16()
def at(positions):
    return Dropout(0.5, 5, positions=positions)
def norm(x, residual, weight=None, dropout=None):
    parameters = ops.LayerNormParams(rand(8) if weight is None else weight, rand(8), 1e-12)
    return ops.add_dropout_norm(x, rand(8), residual, parameters, dropout, 0)
def drop(positions):
    return ops.dropout(rand(3, 4), at(positions), 0)
def embed(ids, token_type=None, weight=None, token_type_ids=None):
    ids = torch.as_tensor(ids)
    token_type_ids = ids * 0 if token_type_ids is None else token_type_ids
    tables = ops.EmbeddingTables(rand(9, 8), rand(9, 8), rand(2, 8) if token_type is None else token_type)
    parameters = ops.LayerNormParams(rand(8) if weight is None else weight, rand(8), 1e-12)
    return ops.embed_norm((ids, ids.clamp(0, 1), token_type_ids), tables, parameters, None, 0)
def attend(cu_seqlens, qkv=None):
    return attention(rand(4, 3, 2, 8) if qkv is None else qkv, cu_seqlens, 5, None, 0)
def cross(q=None, kv=None, q_starts=(0, 4), kv_starts=(0, 6)):
    q, kv = rand(4, 2, 8) if q is None else q, rand(6, 2, 2, 8) if kv is None else kv
    return cross_attention(q, kv, torch.tensor(q_starts).int(), torch.tensor(kv_starts).int(), 4, 6)
def loss(labels=None, logits=None, bias=None, dbias=None):
    logits, bias = rand(2, 3) if logits is None else logits, rand(3) if bias is None else bias
    return cross_entropy_(logits, bias, torch.tensor([0, 1]) if labels is None else labels, 1.0, dbias)
def sparse(values, rows, columns):
    return torch.sparse_coo_tensor(torch.tensor([[0, 3]]), values, (rows, columns))
def update(gradient=None, exp_avg=None, touched=None):
    gradient = sparse(rand(2, 3), 5, 3) if gradient is None else gradient
    touched = torch.zeros(5, dtype=torch.uint8) if touched is None else touched
    exp_avg = rand(5, 3) if exp_avg is None else exp_avg
    return adamw.adamw_rows_(rand(5, 3), gradient, exp_avg, rand(5, 3), touched, STEP)
def linear_gradients(dy, weight=None):
    return cpu_linear.linear_backward(dy, states(4, 64), rand(64, 64) if weight is None else weight, (True,) * 3)
def encode(hidden=None, cu_seqlens=None, positions=None, shape=SHAPE, mask_keys=KEYS, parameters=PARAMETERS):
    bounds = torch.tensor([0, 4]).int() if cu_seqlens is None else cu_seqlens
    hidden = states(4, 32) if hidden is None else hidden
    if fused_encoder(hidden, bounds, 4, positions, shape, mask_keys, parameters) is None:
        raise ValueError("the encoder's layers are computed one by one")
for good in GOOD_CALLS:
    eval(good)
for name, code in CALLS.items():
    try:
        eval(code)
        print(name, "passed", sep=": ")
    except ValueError as error:
        print(name, "rejected", sep=": ")
"""
# The defaults of the functions above fit: a bad call is rejected for its one bad argument.
GOOD_CALLS = [
    "norm(rand(4, 8), rand(4, 8), dropout=at(torch.tensor([1, 2, 3, 4])))",
    "drop(torch.tensor([1, 2, 3]))",
    "embed([0, 1])",
    "attend(torch.tensor([0, 4]).int())",
    "cross()",
    "loss(dbias=rand(3))",
    "update()",
]
GOOD_BFLOAT16_CALLS = ["linear_gradients(states(4, 64))", "encode()", "encode(positions=torch.tensor([0, 3]))"]


def check_bad_calls(option: str, calls: dict[str, str], good_calls: list[str]) -> None:
    program = f"CALLS = {calls!r}\nGOOD_CALLS = {good_calls!r}\n{HARNESS}"
    result = subprocess.run(
        [sys.executable, option, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"{name}: rejected" for name in calls]


@needs_native
@pytest.mark.parametrize("option", [pytest.param("-B", marks=pytest.mark.slow), "-O"])
def test_arguments_that_do_not_fit_raise_also_under_python_o(option: str) -> None:
    check_bad_calls(option, BAD_CALLS, GOOD_CALLS)


@pytest.mark.bfloat16
def test_arguments_of_bfloat16_kernels_that_do_not_fit_raise_under_python_o() -> None:
    check_bad_calls("-O", BAD_BFLOAT16_CALLS, GOOD_BFLOAT16_CALLS)


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
def test_scratch_memory_that_cannot_be_allocated_raises_memory_error() -> None:
    """Under a limit on the address space, 1 MB above what the process has with its tensors."""
    program = r"""
import re, resource, torch
from bertwright.kernels import ffi, fused_ops as ops
from bertwright.kernels.attention import attention, attention_args
from bertwright.kernels.dropout import KEEP_ALL
torch.set_num_threads(1)
attention(torch.zeros(8, 3, 1, 8), torch.tensor([0, 8]).int(), 8, None, 0)
qkv, starts = torch.zeros(20_000, 3, 1, 512), torch.tensor([0, 20_000]).int()
out, lse = torch.empty(20_000, 1, 512), torch.empty(20_000, 1)
args = attention_args((qkv,), starts, starts, False, None)
used = int(re.search(r"VmSize:\s+(\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)
try:
    ffi.call("attention", torch.float32, args, KEEP_ALL, out, lse)
except MemoryError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("attention: not enough memory")
