"""Run the README's tour and replace the printed results in it by the real ones.

    python tests/readme/update.py

Takes some minutes. The machine that the README names must be the machine that this runs on; correct that by hand.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from test_readme import BLOCK, README, ROOT, TOUR, execute, shown_commands


def main() -> None:
    tour = TOUR
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "demo").symlink_to(ROOT / "demo")
        for language, block in BLOCK.findall(TOUR):
            if language == "console":
                commands = re.findall(r"^\$ (?:.*\\\n)*.*\n", block, re.M)
                outputs = [execute(command, Path(folder)) for command, _ in shown_commands(block)]
                printed = "".join(
                    command + "\n".join(line.rstrip() for line in output.strip("\n").split("\n")) + "\n"
                    for command, output in zip(commands, outputs, strict=True)
                )
                tour = tour.replace(block, printed)
    (ROOT / "README.md").write_text(README.replace(TOUR, tour), encoding="utf-8")


if __name__ == "__main__":
    main()
