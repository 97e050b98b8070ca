"""The files of `deploy/`: their commands are those of this version, and systemd accepts the unit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bertwright.cli.options import read_settings
from bertwright.serving.serve_settings import ServeSettings

DEPLOY = Path(__file__).parents[2] / "deploy"


def read_command(name: str) -> list[str]:
    """Return the arguments of `bertwright serve` in a file."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    if name == "Dockerfile":
        parts = [json.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE)]
        return [argument for part in parts for argument in part][2:]
    return shlex.split(re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0])[2:]


@pytest.mark.parametrize("name", ["Dockerfile", "bertwright.service"])
def test_a_file_starts_the_server_as_this_version_has_it(name: str) -> None:
    settings = read_settings(ServeSettings, "serve", read_command(name), "")
    assert settings.port == 8000
    assert len(settings.models) == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "bertwright.service").read_text(encoding="utf-8")
    path = tmp_path / "bertwright.service"
    path.write_text(unit.replace("/opt/bertwright/bin/bertwright", shutil.which("true") or ""), encoding="utf-8")
    result = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
