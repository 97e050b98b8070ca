"""Native code that runs out of memory raises MemoryError instead of ending the process (finding M8)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bertwright.kernels import native_library

SETUP = """
import random, re, resource
from types import SimpleNamespace
from bertwright.kernels import native_library
from bertwright.vocabulary.learn.merges import Criterion, NativeMergeTrainer, make_trainer
from bertwright.vocabulary.learn.chunk_counter import make_chunk_counter
letters, chance = "abcdefghijklmnopqrstuvwxyz", random.Random(0)
words = {"".join(chance.choices(letters, k=12)): 3 for _ in range(40_000)}
text, criterion = " ".join(words).encode(), Criterion("bpe", 2)
def limit_memory(megabytes):
    used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), resource.RLIM_INFINITY))
def fails(function, *arguments):
    try:
        function(*arguments)
    except MemoryError as error:
        return "fewer texts" in str(error)
"""
PROGRAMS = {
    "trainer": """
library = native_library.load_library("wordpiece")
parts = "new", "free", "advance", "size", "merges", "part", "text"
names = [f"learner_{part}" for part in parts]
limited = SimpleNamespace(**{name: getattr(library, name) for name in names})
def learner_new(*arguments):
    limit_memory(1)  # not before: NumPy needs memory, too
    return library.learner_new(*arguments)
make_trainer({}, frozenset(), criterion)  # declares the functions
limited.learner_new = learner_new
print(fails(NativeMergeTrainer, words, criterion, limited))
""",
    "merges": """
trainer = make_trainer(words, frozenset(letters), criterion)
limit_memory(0)
print(fails(trainer.advance, 10_000))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(fails(trainer.advance, 1))  # a merge is incomplete
""",
    "chunks": """
counter = make_chunk_counter()
limit_memory(0)
print(fails(lambda: [counter.add(text[first:]) for first in range(100)]))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
counter.add(b"a b a")
print(dict(counter.take()) == {"a": 2, "b": 1})  # the texts before are gone, the counter is usable
""",
}


@pytest.mark.skipif(native_library.load_library("wordpiece") is None, reason="no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
@pytest.mark.parametrize("program", PROGRAMS)
def test_native_code_without_memory_raises_memory_error(program: str) -> None:
    command = [sys.executable, "-c", SETUP + PROGRAMS[program]]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == {"True"}
