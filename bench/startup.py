"""CPU time from the start of a process to its answer: imports, help, and one filled mask.

    python bench/startup.py [--rounds 5]

User and system time of the process and its children, so that other work on the machine does not count; medians. The
model is all-MiniLM-L6-v2 without a masked-token head for `load`, and a model of its shape with random weights for
`fill-mask`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from environment import describe_machine, keep_printed, make_parser, minilm, take_turns

FILLABLE = """
import sys, transformers
config = transformers.BertConfig.from_pretrained(sys.argv[1])
transformers.BertForMaskedLM(config).save_pretrained(sys.argv[2])
transformers.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
"""


def children_time() -> float:
    """Return the CPU seconds of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_python(arguments: list[str]) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    keep_printed(__file__, 1)
    print(f"{describe_machine(1)}\n\n| | CPU seconds |\n|---|---:|")
    with tempfile.TemporaryDirectory() as work:
        fillable = str(Path(work) / "model")
        subprocess.run([sys.executable, "-c", FILLABLE, str(minilm()), fillable], check=True, stderr=subprocess.DEVNULL)
        command_line = ["-m", "bertwright"]
        cases = {
            "python": ["-c", ""],
            "import numpy": ["-c", "import numpy"],
            "import torch": ["-c", "import torch"],
            "import bertwright": ["-c", "import bertwright"],
            "bertwright --help": [*command_line, "--help"],
            "bertwright pretrain --help": [*command_line, "pretrain", "--help"],
            "bertwright finetune --help": [*command_line, "finetune", "--help"],
            "load(MiniLM)": ["-c", f"import bertwright; bertwright.load({str(minilm())!r})"],
            "bertwright fill-mask": [*command_line, "fill-mask", fillable, "Paris is the [MASK] of France."],
        }
        runs = {name: partial(run_python, arguments) for name, arguments in cases.items()}
        times = take_turns(runs, chosen.rounds, children_time)
    for name, seconds in times.items():
        print(f"| {name} | {statistics.median(seconds):.2f} |")


if __name__ == "__main__":
    main()
