"""Check the files of a release: their metadata, and each wheel in a fresh environment of every Python that is found.

    python tests/release.py dist [--torch 2.11.0 2.13.0] [--python python3.11 ~/.pyenv/versions/3.13.0/bin/python]

`make release` builds the files and runs this. A wheel is tried from raw text to predictions, by the program with which
`test_extras.py` tries the core. pip needs its index for the dependencies.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from test_extras import CORE, EXTRAS

PYTHONS = [f"python3.{minor}" for minor in range(11, 15)]
# A path of modules of the caller would be searched before the fresh environment.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
SMOKE = f"import sys\nEXTRAS = {EXTRAS}\n{CORE}"


def starts(python: str) -> bool:
    """Whether an interpreter exists; one that a version manager has not activated is a program that fails."""
    try:
        return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find_wheels(dist: Path) -> list[Path]:
    """Return the wheels that this machine can install."""
    return sorted(wheel for wheel in dist.glob("*.whl") if wheel.stem.endswith(("-any", platform.machine())))


def try_wheels(python: str, torch: str | None, wheels: list[Path]) -> None:
    """Install the wheels, one after another, in a fresh environment, and go from raw text to predictions with each."""
    with tempfile.TemporaryDirectory(prefix="bertwright-release-") as folder:
        venv = Path(folder) / "venv"
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        run = partial(subprocess.run, env=ENVIRONMENT, check=True)
        pip = [str(venv / "bin" / "pip"), "--quiet", "--disable-pip-version-check"]
        if torch is not None:
            run([*pip, "install", "--no-compile", f"torch=={torch}"])
        run([*pip, "install", "--no-compile", str(wheels[0])])
        for wheel in wheels:
            run([*pip, "install", "--no-compile", "--no-deps", "--force-reinstall", str(wheel)])
            run([*pip, "check"])
            work = Path(folder) / wheel.stem
            work.mkdir()
            command = [str(venv / "bin" / "python"), "-c", SMOKE]
            smoke = run(command, cwd=work, check=False, capture_output=True, text=True)
            if smoke.returncode:
                sys.exit(f"{wheel.name}: {smoke.stdout}{smoke.stderr}")
            versions = "from importlib.metadata import version as v; print(v('bertwright'), 'with torch', v('torch'))"
            run([str(venv / "bin" / "python"), "-c", f"print({python!r}, end=' '); {versions}"])
            print(f"    {wheel.name}: raw text to predictions", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="folder of the files")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="interpreters; those that do not start are named")
    parser.add_argument("--torch", nargs="+", default=[None], help="versions of torch; otherwise what pip chooses")
    arguments = parser.parse_args()
    files = [str(path) for path in sorted(arguments.dist.iterdir())]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    found = {python: starts(python) for python in arguments.python}
    print(f"not on this machine: {', '.join(name for name in found if not found[name]) or 'none'}", flush=True)
    for python in (name for name in found if found[name]):
        for torch in arguments.torch:
            try_wheels(python, torch, find_wheels(arguments.dist))


if __name__ == "__main__":
    main()
