"""Files and functions of the package that a command enters before it does its work.

    python bench/call_path.py [--tree DIR] [--list pretrain]

Counted are functions called from the command line to the first backward pass (pretrain with the demo recipe, finetune)
or the first forward pass (predict), in all threads of a real run on data that the script makes. Module and class bodies
and comprehensions are not functions. DIR is the root of another source tree, such as a `git worktree` of an earlier
commit.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
TEXT = "\n\n".join(f"The bear saw {number} wolves. They ran into the forest near the river." for number in range(400))
ROWS = "text\tlabel\n" + "the bear sees the wolf\tyes\nthe river is near\tno\n" * 8
PREPARATION = """
vocabulary text.txt --output vocabulary --size 200 --min-frequency 2
prepare text.txt --vocabulary vocabulary --store store --workers 1 --held-out 0.1
pretrain --store store --run bert --size tiny --steps 1 --batch-size 4 --max-length 32 --long-ratio 0 --eval-sequences 4
finetune --task classification --train train.tsv --model bert --run tuned --epochs 1
"""
CASES = {  # command, and the function of torch or of the package whose first call ends the count
    "pretrain": ("pretrain --config demo --store store --run new", "torch/autograd/__init__.py:backward"),
    "finetune": (
        "finetune --task classification --train train.tsv --model bert --run new-task",
        "torch/autograd/__init__.py:backward",
    ),
    "predict": ("predict tuned --inputs train.tsv --output new.tsv", "systems/bert/bert_encoder.py:forward"),
}


def measure(command: str, last: str) -> None:
    """Run a command in this process until the function `last` is called; print the functions entered and exit."""
    main: Any = importlib.import_module("bertwright.cli.main")
    package = f"{Path(main.__file__).parents[1]}{os.sep}"
    last_file, _, last_name = last.partition(":")
    calls = Counter[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:  # bodies of modules and classes are not
            return
        if code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            calls[f"{code.co_filename.removeprefix(package)}:{code.co_qualname}"] += 1
        if code.co_name == last_name and code.co_filename.endswith(last_file):
            sys.setprofile(None)
            Path(os.environ["CALLS"]).write_text(json.dumps(calls))
            os._exit(0)

    threading.setprofile(profile)
    sys.setprofile(profile)
    sys.exit(main.run(command.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--list", choices=CASES, help="also print a command's functions, with their calls")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(*CASES[chosen.measure])
    with tempfile.TemporaryDirectory() as work:
        calls_file = Path(work) / "calls.json"
        environment = os.environ | {"PYTHONPATH": str(chosen.tree.resolve() / "src"), "CALLS": str(calls_file)}

        def run(*arguments: str) -> None:
            subprocess.run([sys.executable, *arguments], cwd=work, env=environment, check=True, stdout=subprocess.PIPE)

        (Path(work) / "text.txt").write_text(TEXT)
        (Path(work) / "train.tsv").write_text(ROWS)
        for command in PREPARATION.strip().splitlines():
            run("-m", "bertwright", *command.split())
        from environment import keep_printed  # imports torch, which the measured commands need not

        keep_printed(__file__)
        print("| command | files | functions | calls |\n|---|---:|---:|---:|")
        for name in CASES:
            run(str(Path(__file__).resolve()), "--measure", name)
            calls = json.loads(calls_file.read_text())
            files = {function.partition(":")[0] for function in calls}
            print(f"| {name} | {len(files)} | {len(calls)} | {sum(calls.values()):,} |")
            if name == chosen.list:
                print("\n".join(f"{function}  {count}" for function, count in calls.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
