"""Run the tests of kernels, models, training and resume as on lesser processors, with one and two threads.

    python tests/machines.py [MACHINE ...]

`make test-machines` runs this for all machines. Three variables cap the instruction sets of the kernels, PyTorch and
oneDNN; what each library then uses is read back and printed. MKL is not capped.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/kernels/test_fused_ops.py", "tests/kernels/test_attention.py", "tests/kernels/test_cross_attention.py",
    "tests/models", "tests/systems", "tests/objectives", "tests/training", "tests/inference", "tests/pretraining",
    "tests/finetuning/test_head_start.py",
)  # fmt: skip
KERNELS, TORCH, ONEDNN = "BERTWRIGHT_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"
MACHINES: dict[str, dict[str, dict[str, str]]] = {
    "x86_64": {
        "native": {},
        "avx512": {KERNELS: "x86-64-v4", TORCH: "avx512", ONEDNN: "AVX512_CORE"},
        "avx2": {KERNELS: "x86-64-v3", TORCH: "avx2", ONEDNN: "AVX2"},
        "sse": {KERNELS: "x86-64-v2", TORCH: "default", ONEDNN: "SSE41"},
    },
    "aarch64": {"native": {}, "armv8-a": {KERNELS: "armv8-a", TORCH: "default"}},
}
# oneDNN prints its instruction set at its first operation, and nowhere else.
PROBE = """
import torch
from bertwright.kernels import ffi, native_library
library = native_library.load_library("kernels")
print("kernels:", library and library._name.rpartition("/")[2], ffi.bf16_isa(), flush=True)
print("torch:", torch.backends.cpu.get_cpu_capability(), flush=True)
torch.ones(2, 2).to_mkldnn()
"""


class InUse(NamedTuple):
    """What each library uses, in its own words; "" if it does not say."""

    kernels: str
    torch: str
    onednn: str


def read_in_use(caps: dict[str, str]) -> InUse:
    """Read back, in a process with these caps, what each library uses.

    Raises ValueError for a cap that a library refuses, such as an instruction set that this processor lacks.
    """
    environment = {**without_caps(), **caps, "ONEDNN_VERBOSE": "1"}
    probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, cwd=ROOT, capture_output=True, text=True)
    if probe.returncode:
        raise ValueError(probe.stderr.strip().rpartition("\n")[2])
    return parse_in_use(probe.stdout)


def parse_in_use(printed: str) -> InUse:
    """Parse the output of PROBE."""
    patterns = (r"^kernels: (.*)$", r"^torch: (.*)$", r"^onednn_verbose,.*\bcpu,isa:(.*)$")
    matches = (re.search(pattern, printed, re.MULTILINE) for pattern in patterns)
    return InUse(*(match[1] if match else "" for match in matches))


def without_caps() -> dict[str, str]:
    """Return the environment without caps."""
    return {name: value for name, value in os.environ.items() if name not in (KERNELS, TORCH, ONEDNN)}


def describe(caps: dict[str, str], native: InUse, capped: InUse) -> list[str]:
    """Return a line per cap: what the library uses, and whether the cap changed it."""
    lines = []
    for variable, before, after in zip((KERNELS, TORCH, ONEDNN), native, capped, strict=True):
        effect = "" if variable not in caps else " (no effect on this processor)" if before == after else " (capped)"
        lines.append(f"  {variable}={caps.get(variable, '')}: {after or 'unknown'}{effect}")
    return lines


def run_machine(name: str, caps: dict[str, str], native: InUse) -> list[str]:
    """Run the tests under the caps of a machine and return the names of the runs that failed."""
    print(f"── {name}", flush=True)
    try:
        capped = read_in_use(caps)
    except ValueError as error:
        print(f"  not run: {error}", flush=True)
        return []
    print(*describe(caps, native, capped), sep="\n", flush=True)
    if caps and capped == native:
        print("  not run: equals the run without caps", flush=True)
        return []
    failed = []
    for threads in ("1", "2"):
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-r", "f", *TESTS]
        environment = {**without_caps(), **caps, "OMP_NUM_THREADS": threads}
        print(f"  threads: {threads}", flush=True)
        if subprocess.run(command, env=environment, cwd=ROOT).returncode:
            failed.append(f"{name}, threads: {threads}")
    return failed


def main() -> int:
    """Run the tests for the machines on the command line, or for all."""
    machines = MACHINES.get(platform.machine(), {"native": {}})
    if unknown := [name for name in sys.argv[1:] if name not in machines]:
        print(f"MACHINE: expected some of {', '.join(machines)}, got {unknown[0]!r}", file=sys.stderr)
        return 2
    native = read_in_use({})
    failed = [run for name in sys.argv[1:] or machines for run in run_machine(name, machines[name], native)]
    print(f"failed: {', '.join(failed)}" if failed else "all runs passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
