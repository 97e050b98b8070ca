"""The C interface: Python and C++ declare the same, and wrong arguments raise, also under `python -O`."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertwright.kernels import ffi, native
from bertwright.kernels.fused_encoder import PARAMETER_NAMES, EncoderArgs
from bertwright.kernels.reference import AdamStep

SOURCES = Path(ffi.__file__).parent / "csrc"
needs_native = pytest.mark.skipif(native.load_library("kernels") is None, reason="no C++ compiler")


def code_of(parameter: str) -> str:
    """Return the letter of SIGNATURES for a C++ parameter."""
    if "*" in parameter:
        return "P"
    return {"int64_t": "q", "double": "d"}[parameter.split()[0]]


def test_signatures_equal_those_of_the_source() -> None:
    exported = (SOURCES / "kernels.cpp").read_text(encoding="utf-8").split('extern "C" {')[1]
    declared = {}
    for name, parameters in re.findall(r"^int64_t (\w+)\((.*?)\) \{", exported, flags=re.M | re.S):
        *codes, threads = (code_of(parameter.strip()) for parameter in parameters.split(","))
        assert threads == "q"
        declared[name] = "".join(codes)
    assert declared == ffi.SIGNATURES


def fields_of(header: str, struct: str) -> list[tuple[str, str]]:
    """Return (type, name) of each field of a C++ struct."""
    text = (SOURCES / header).read_text(encoding="utf-8")
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\}};", text, flags=re.S)
    fields = []
    lines = (line.partition("//")[0].strip() for line in body.splitlines())
    for declaration in " ".join(line for line in lines if "(" not in line).split(";"):
        if not declaration.strip():
            continue
        first, *others = declaration.split(",")
        *of_type, name = first.split()
        for field in (name, *others):
            fields.append((" ".join(of_type), field.strip().lstrip("*")))
    return fields


C_NAMES = {"uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


@pytest.mark.parametrize(
    ("structure", "header", "struct"),
    [(ffi.CMaskKey, "dropout.h", "MaskKey"), (EncoderArgs, "encoder.h", "EncoderArgs")],
)
def test_structures_equal_those_of_the_source(structure: type[ctypes.Structure], header: str, struct: str) -> None:
    declared = [
        (name, ctypes.c_void_p if "*" in of_type else C_NAMES[of_type]) for of_type, name in fields_of(header, struct)
    ]
    assert declared == [(field[0], field[1]) for field in structure._fields_]


def test_adam_step_equals_that_of_the_source() -> None:
    assert fields_of("adamw.h", "AdamStep") == [("double", name) for name in AdamStep._fields]


def test_layer_parameters_equal_those_of_the_source() -> None:
    names = [name for _, name in fields_of("encoder.h", "LayerParameters")]
    assert names == [name.replace(".", "_") for name in PARAMETER_NAMES]


@needs_native
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((0, 0.5, None, None, None, 1, 1), id="float for int64"),
        pytest.param((0, 0, 123, None, None, 1, 1), id="int for pointer"),
        pytest.param((0, 0, [1], None, None, 1, 1), id="list of int for pointers"),
    ],
)
def test_call_with_a_wrong_type_raises(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, AttributeError, ctypes.ArgumentError)):
        ffi.call("bias_gelu", *arguments)  # type: ignore[arg-type]


@needs_native
def test_call_with_a_missing_argument_raises() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ffi.call("square_sum", None, None, 0)


BAD_CALLS = {
    "bias_gelu of three dimensions": "ops.bias_gelu(rand(4, 3, 8), rand(8), False)",
    "bias_gelu with a short bias": "ops.bias_gelu(rand(4, 8), rand(7), False)",
    "add_dropout_norm of three dimensions": "norm(rand(4, 3, 8), rand(4, 3, 8))",
    "add_dropout_norm with a narrow residual": "norm(rand(4, 8), rand(4, 7))",
    "add_dropout_norm with another dtype": "norm(rand(4, 8), rand(4, 8).bfloat16())",
    "add_dropout_norm with a short weight": "norm(rand(4, 8), rand(4, 8), rand(7))",
    "dropout at int32 positions": "drop(torch.tensor([1, 2, 3], dtype=torch.int32))",
    "dropout at too few positions": "drop(torch.tensor([1, 2]))",
    "dropout at positions of two dimensions": "drop(torch.tensor([[1], [2], [3]]))",
    "dropout of every element": "ops.dropout(rand(3, 4), Dropout(1.0, 5), 0)",
    "embed_norm with an id beyond the table": "embed([0, 9])",
    "embed_norm with a negative id": "embed([0, -1])",
    "embed_norm with int32 ids": "embed(torch.tensor([0, 1], dtype=torch.int32))",
    "embed_norm with tables of two widths": "embed([0, 1], token_type=rand(2, 7))",
    "embed_norm with a short norm": "embed([0, 1], weight=rand(7))",
    "attention with int64 boundaries": "attention(rand(4, 3, 2, 8), torch.tensor([0, 4]), 4, None, 0)",
    "attention beyond the tokens": "attention(rand(4, 3, 2, 8), torch.tensor([0, 5]).int(), 5, None, 0)",
    "attention with descending boundaries": "attention(rand(4, 3, 2, 8), torch.tensor([0, 3, 2, 4]).int(), 4, None, 0)",
    "attention without values": "attention(rand(4, 2, 2, 8), torch.tensor([0, 4]).int(), 4, None, 0)",
    "cross entropy with a label beyond the vocabulary": "loss(torch.tensor([0, 3]))",
    "cross entropy with too few labels": "loss(torch.tensor([0]))",
    "cross entropy with int32 labels": "loss(torch.tensor([0, 1], dtype=torch.int32))",
    "gradient_norm of bfloat16": "ops.gradient_norm([rand(3).bfloat16()])",
    "adamw_ with a short moment": "ops.adamw_([rand(3)], [rand(3)], [rand(2)], [rand(3)], STEP)",
    "a transposed parameter": "ops.adamw_(*([rand(3, 4).T] for _ in range(4)), STEP)",
    "encoder with a parameter of another shape": "encode(positions=None, parameters=[rand(3)] * 12)",
}
HARNESS = """
from types import SimpleNamespace
import torch
from bertwright.kernels import fused_ops as ops
from bertwright.kernels.attention import attention
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_encoder import EncoderShape, fused_encoder
STEP = ops.AdamStep(0.1, 0.9, 0.9, 1e-6, 0.0)
rand = torch.rand
def norm(x, residual, weight=None):
    parameters = ops.LayerNormParams(rand(8) if weight is None else weight, rand(8), 1e-12)
    return ops.add_dropout_norm(x, rand(8), residual, parameters, None, 0)
def drop(positions):
    return ops.dropout(rand(3, 4), Dropout(0.5, 5, positions=positions), 0)
def embed(ids, token_type=None, weight=None):
    ids = torch.as_tensor(ids)
    batch = SimpleNamespace(input_ids=ids, position_ids=ids.clamp(0, 1), token_type_ids=ids * 0)
    tables = ops.EmbeddingTables(rand(9, 8), rand(9, 8), rand(2, 8) if token_type is None else token_type)
    parameters = ops.LayerNormParams(rand(8) if weight is None else weight, rand(8), 1e-12)
    return ops.embed_norm(batch, tables, parameters, None, 0)
def loss(labels):
    return ops.cross_entropy_(rand(2, 3), rand(3), labels, 1.0, None)
def encode(positions, parameters):
    batch = SimpleNamespace(cu_seqlens=torch.tensor([0, 4]).int())
    shape = EncoderShape(1, 32, 64, 2, False, False, 1e-12)
    return fused_encoder(rand(4, 32).bfloat16(), batch, positions, shape, [], parameters)
for name, code in CALLS.items():
    try:
        eval(code)
        print(name, "passed", sep=": ")
    except ValueError as error:
        print(name, "rejected", sep=": ")
"""


@needs_native
@pytest.mark.parametrize("option", ["-B", "-O"])
def test_arguments_that_do_not_fit_raise_also_under_python_o(option: str) -> None:
    program = f"CALLS = {BAD_CALLS!r}\n{HARNESS}"
    result = subprocess.run(
        [sys.executable, option, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"{name}: rejected" for name in BAD_CALLS]


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
def test_scratch_memory_that_cannot_be_allocated_raises_memory_error() -> None:
    """Under a limit on the address space, 1 MB above what the process has with its tensors."""
    program = r"""
import re, resource, torch
from bertwright.kernels import ffi, fused_ops as ops
from bertwright.kernels.attention import attention
torch.set_num_threads(1)
attention(torch.zeros(8, 3, 1, 8), torch.tensor([0, 8]).int(), 8, None, 0)
qkv, starts = torch.zeros(20_000, 3, 1, 512), torch.tensor([0, 20_000]).int()
out, lse = torch.empty(20_000, 1, 512), torch.empty(20_000, 1)
used = int(re.search(r"VmSize:\s+(\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)
try:
    ffi.call("attention", 0, qkv, starts, 1, 1, 512, 0, ffi.c_mask_key(None, 0), out, lse)
except MemoryError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("attention: not enough memory")
