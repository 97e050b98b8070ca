"""Run the kernel tests on libraries for other instruction sets, with emulated intrinsics if the processor lacks them.

    python tests/kernels/instruction_sets.py [TARGET ...]

compiles with AddressSanitizer and UndefinedBehaviorSanitizer, so that any access outside a tensor fails the tests.
`make test-sanitize` runs this for all targets (about half an hour on two cores).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from bertwright.kernels.instruction_sets import find_levels

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TESTS = (
    "tests/kernels/test_fused_ops.py",
    "tests/kernels/test_attention.py",
    "tests/kernels/test_cross_attention.py",
    "tests/kernels/test_rotary.py",
    "tests/kernels/test_int8_linear.py",
    "tests/systems/test_bert_encoder.py",
)
# Under the sanitizers also the other native code: LSTMs, the word-piece learner and counter, and word vectors.
SANITIZED_TESTS = (
    *TESTS,
    "tests/models/test_packed_lstm.py",
    "tests/vocabulary/test_merges.py",
    "tests/vocabulary/test_word_counts.py",
    "tests/kernels/test_word_vector_kernels.py",
)
EMULATION = f"-I{FOLDER / 'emulation'}", "-D__AVX512F__=1"
SANITIZERS = "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"


class Target(NamedTuple):
    """An instruction set to test: compiler arguments, and the micro-kernels that the library must select."""

    level: str
    arguments: tuple[str, ...] = ()
    bf16_isa: str | None = None
    tiles_granted: bool = True
    int8_isa: str | None = None


BASE = next((level.name for level in find_levels() if level.name in ("x86-64-v3", "x86-64-v2")), "")
VNNI, BF16 = "-D__AVX512VNNI__=1", "-D__AVX512BF16__=1"
EMULATED = {
    "avx-vnni": Target(BASE, (EMULATION[0], "-D__AVXVNNI__=1"), int8_isa="avx_vnni"),
    "avx512": Target(BASE, EMULATION, int8_isa="avx512"),
    "avx512-vnni": Target(BASE, (*EMULATION, VNNI), int8_isa="avx512_vnni"),
    "avx512-bf16": Target(BASE, (*EMULATION, VNNI, BF16), "avx512_bf16", int8_isa="avx512_vnni"),
    "amx": Target(BASE, (*EMULATION, VNNI, BF16, "-D__AMX_BF16__=1"), "amx", int8_isa="amx_int8"),
    "amx-denied": Target(
        BASE, (*EMULATION, VNNI, BF16, "-D__AMX_BF16__=1"), "avx512_bf16", tiles_granted=False, int8_isa="avx512_vnni"
    ),
}
BF16_ISAS = {"x86-64-avx512bf16": "avx512_bf16", "x86-64-amx": "amx"}
INT8_ISAS = {
    "x86-64-v3": "avx2", "x86-64-avxvnni": "avx_vnni", "x86-64-v4": "avx512", "x86-64-avx512vnni": "avx512_vnni",
    "x86-64-avx512bf16": "avx512_vnni", "x86-64-amx": "amx_int8",
}  # fmt: skip


def native_targets() -> dict[str, Target]:
    """Return a target for each instruction set that this processor has."""
    return {
        level.name: Target(level.name, bf16_isa=BF16_ISAS.get(level.name), int8_isa=INT8_ISAS.get(level.name))
        for level in find_levels()
    }


def run(target: Target, *pytest_arguments: str, sanitize: bool = False) -> subprocess.CompletedProcess[str]:
    """Compile the kernels for a target and run the kernel tests on them, in a process of their own."""
    compiler = ["g++", *target.arguments, *(SANITIZERS if sanitize else ())]
    environment = {
        **os.environ,
        "BERTWRIGHT_NATIVE": "compile",
        "BERTWRIGHT_ISA": target.level,
        "CXX": " ".join(compiler),
        "EMULATED_TILES": str(int(target.tiles_granted)),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    if sanitize:
        libraries = (
            subprocess.check_output(["g++", f"-print-file-name=lib{name}.so"], text=True) for name in ("asan", "ubsan")
        )
        environment["LD_PRELOAD"] = " ".join(path.strip() for path in libraries)
        environment["ASAN_OPTIONS"] = "detect_leaks=0"  # Python itself has leaks
    selected = (
        "from bertwright.kernels.native_library import load_library as load; from bertwright.kernels import ffi; "
    )
    selected += "print(load('kernels') and ffi.bf16_isa(), ffi.int8_isa())"
    found = subprocess.run([sys.executable, "-c", selected], env=environment, cwd=ROOT, capture_output=True, text=True)
    if found.returncode or found.stdout != f"{target.bf16_isa} {target.int8_isa}\n":
        return found
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--capture=sys",
        *pytest_arguments,
        *(SANITIZED_TESTS if sanitize else TESTS),
    ]
    return subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=not sanitize)


def main() -> int:
    """Run the targets on the command line, or all, under the sanitizers."""
    targets = native_targets() | EMULATED
    failed = []
    for name in sys.argv[1:] or targets:
        print(f"── {name}", flush=True)
        result = run(targets[name], "-x", sanitize=True)
        if result.returncode:
            print(result.stdout or "", result.stderr or "", sep="\n")
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all targets passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
