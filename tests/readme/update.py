"""Run the commands of a README or tour and replace the printed results in it by the real ones, if it shows some.

    python tests/readme/update.py [PAGE, such as docs/tour.md]

Takes some minutes. The machine that the page names must be the machine that this runs on; correct that by hand.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_readme import BLOCK, READMES, ROOT, TOURS, execute, read_page, shown_commands

from helpers import make_hub_cache


def main(name: str) -> None:
    page = read_page(name)
    updated = page
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= make_hub_cache(Path(folder) / "hub")  # the hub client reads them in the commands' processes
        (Path(folder) / "demo").symlink_to(ROOT / "demo")
        for language, block in BLOCK.findall(page):
            if language == "console":
                commands = re.findall(r"^\$ (?:.*\\\n)*.*\n", block, re.M)
                printed = ""
                for command, (line, shown) in zip(commands, shown_commands(block), strict=True):
                    output = re.sub(r" +$", "", execute(line, Path(folder)), flags=re.M).rstrip("\n")
                    printed += f"{command}{output}\n" if shown else command
                updated = updated.replace(block, printed)
    (ROOT / name).write_text(updated, encoding="utf-8")


if __name__ == "__main__":
    for page in sys.argv[1:] or (*READMES, *TOURS):
        main(page)
