"""The number of CPUs for this process, instruction sets, and malloc's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertwright.kernels import cpu
from bertwright.kernels.cpu import available_cpus, available_memory, peak_resident_memory
from bertwright.kernels.instruction_sets import INSTRUCTION_SETS, find_levels


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def machine(root: Path, groups: str, **files: str) -> Path:
    """Create a machine's `proc/self/cgroup`, and files below `sys/fs/cgroup` (in names, "__" is "/")."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_", "cpu.").replace("memory_", "memory.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("value", "processes", "expected"),
    [
        ("3", 1, 3),
        ("1", 1, 1),
        ("3,2", 1, 3),
        ("16", 1, 16),
        ("100000", 1, 1_024),  # OpenMP would end the process
        ("3", 2, 3),
        ("1", 2, 4),  # torchrun's default, not the user's wish
        ("", 1, 8),
        ("0", 1, 8),
        ("many", 2, 4),
    ],
)
def test_omp_num_threads_decides_if_it_is_a_number(
    value: str, processes: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert available_cpus(processes, tmp_path) == expected


def test_cpus_are_divided_among_processes_but_never_zero(tmp_path: Path) -> None:
    assert [available_cpus(processes, tmp_path) for processes in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("200000 100000", 2), ("max 100000", 8), ("50000 100000", 1), ("160000 100000", 2), ("1600000 100000", 8)],
)
def test_a_container_quota_limits_the_cpus(quota: str, expected: int, tmp_path: Path) -> None:
    """Inside a container the group's own path does not exist; its quota is at the root."""
    root = machine(tmp_path, "0::/docker/4711\n", cpu_max=quota)
    assert available_cpus(root=root) == expected


def test_the_smallest_quota_of_nested_groups_limits_the_cpus(tmp_path: Path) -> None:
    root = machine(
        tmp_path, "0::/a/b\n", cpu_max="max 100000", a__cpu_max="300000 100000", a__b__cpu_max="500000 100000"
    )
    assert available_cpus(root=root) == 3


def test_a_quota_of_control_groups_version_1_limits_the_cpus(tmp_path: Path) -> None:
    groups = "9:name=systemd:/\n4:cpu,cpuacct:/box\n0::/\n"
    root = machine(tmp_path, groups, cpu__box__cpu_cfs_quota_us="400000", cpu__box__cpu_cfs_period_us="100000")
    assert available_cpus(root=root) == 4
    (root / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us").write_text("-1")
    assert available_cpus(root=root) == 8


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/docker/4711\n", {"memory_max": "2000000000"}, 2_000_000_000),
        ("0::/a\n", {"memory_max": "3000000000", "a__memory_max": "max"}, 3_000_000_000),
        ("4:memory:/box\n0::/\n", {"memory__box__memory_limit_in_bytes": "1000000000"}, 1_000_000_000),
        ("4:memory:/\n", {"memory__memory_limit_in_bytes": "9223372036854771712"}, 8 << 30),
        ("0::/\n", {}, 8 << 30),
    ],
)
def test_a_container_limits_the_memory(
    groups: str, limits: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": (8 << 30) // 4096}.__getitem__)
    assert available_memory(machine(tmp_path, groups, **limits)) == expected


def test_without_affinity_masks_all_cpus_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert available_cpus(root=tmp_path) == 5


ZEN3 = """fpu pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c lahf_lm abm bmi1 avx2 bmi2 sha_ni"""
V4 = f"{ZEN3} avx512f avx512dq avx512cd avx512bw avx512vl"
SAPPHIRE_RAPIDS = f"{V4} avx512_vnni avx_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"
NEOVERSE_V1 = "fp asimd aes crc32 atomics fphp asimdhp asimdrdm asimddp sve i8mm bf16 dgh rng"


@pytest.mark.parametrize(
    ("machine", "line", "expected"),
    [
        ("x86_64", f"flags\t\t: {ZEN3}", ["x86-64-v3", "x86-64-v2"]),
        ("x86_64", f"flags\t\t: {ZEN3.replace('fma ', '')}", ["x86-64-v2"]),
        ("x86_64", "flags\t\t: fpu sse2", []),
        ("x86_64", f"flags\t\t: {SAPPHIRE_RAPIDS}", [level.name for level in INSTRUCTION_SETS["x86_64"]]),
        ("aarch64", "Features\t: fp asimd evtstrm aes", ["armv8-a"]),
        ("aarch64", f"Features\t: {NEOVERSE_V1}", [level.name for level in INSTRUCTION_SETS["aarch64"]]),
        ("aarch64", f"Features\t: {NEOVERSE_V1.replace('bf16', '')}", ["armv8.2-a-dotprod", "armv8-a"]),
        ("riscv64", "isa\t\t: rv64imafdc", []),
    ],
)
def test_levels_follow_from_cpuinfo(
    machine: str, line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTWRIGHT_ISA", raising=False)
    monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor\t: 0\n{line}\nbugs\t\t: none\n")
    assert [level.name for level in find_levels()] == expected


def test_a_level_can_be_selected_if_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"flags\t\t: {ZEN3}\n")
    monkeypatch.setenv("BERTWRIGHT_ISA", "x86-64-v2")
    assert [level.name for level in find_levels()] == ["x86-64-v2"]
    monkeypatch.setenv("BERTWRIGHT_ISA", "x86-64-v4")
    with pytest.raises(ValueError, match=r"BERTWRIGHT_ISA.*x86-64-v3, x86-64-v2.*x86-64-v4"):
        find_levels()


def run_on_linux(program: str) -> list[str]:
    """Run a program of Python in a new process; return the words that it prints."""
    if sys.platform != "linux":
        pytest.skip("glibc only")
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return result.stdout.split()


def test_configure_malloc_keeps_large_blocks_out_of_mmap() -> None:
    program = (
        "import ctypes, platform; from bertwright.kernels.cpu import configure_malloc; configure_malloc()\n"
        "c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; c.malloc.argtypes = [ctypes.c_size_t]\n"
        "c.free.argtypes = [ctypes.c_void_p]\n"
        "block = c.malloc(100 << 20); c.free(block); assert c.malloc(100 << 20) == block\n"
        "heap = next(line for line in open('/proc/self/maps') if '[heap]' in line).split()[0]\n"
        "low, high = (int(end, 16) for end in heap.split('-'))\n"
        "print(platform.libc_ver()[0], low <= block < high)"
    )
    assert run_on_linux(program) in (["glibc", "True"], ["False"])


def test_blocks_are_reused_after_restore_malloc() -> None:
    """glibc would map and unmap every block above 128 KiB from then on."""
    program = (
        "import platform, resource, numpy as np\n"
        "from bertwright.kernels.cpu import configure_malloc, restore_malloc\n"
        "configure_malloc(); restore_malloc()\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "np.ones(1 << 19); before = faults()\n"
        "for _ in range(50): np.ones(1 << 19)\n"
        "print(platform.libc_ver()[0], faults() - before < 5000)"
    )
    library, *found = run_on_linux(program)
    assert found == ["True"] or library != "glibc"


def test_restore_malloc_returns_large_blocks_to_the_system() -> None:
    program = (
        "import platform, numpy as np\n"
        "from bertwright.kernels.cpu import configure_malloc, restore_malloc\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20\n"
        "configure_malloc(); before = resident()\n"
        "block = np.ones(200 << 17); del block; retained = resident() - before\n"
        "restore_malloc(); left = resident() - before\n"
        "print(platform.libc_ver()[0], retained > 150, left < 50)"
    )
    library, *found = run_on_linux(program)
    assert found == ["True", "True"] or library != "glibc"


@pytest.mark.skipif(sys.platform == "win32", reason="unknown on Windows")
def test_the_peak_memory_of_a_process_is_its_own_and_not_that_of_its_parent() -> None:
    large = np.ones(50_000_000)
    own = peak_resident_memory()
    assert own is not None
    assert own > large.nbytes
    code = "from bertwright.kernels.cpu import peak_resident_memory as peak; print(peak())"
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert child < large.nbytes
