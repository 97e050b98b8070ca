"""The extra `export` fits constraints.txt: what is pinned there is what the packages of the extra ask for."""

from __future__ import annotations

import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS = {
    str(canonicalize_name(name)): pin
    for name, _, pin in (
        line.strip().partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
}


def export_extra() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(text) for text in project["optional-dependencies"]["export"]]


def test_every_package_of_the_extra_is_pinned_within_its_bounds() -> None:
    assert {one.name for one in export_extra()} == {"nncf", "onnx", "onnxruntime", "onnxscript", "openvino"}
    for one in export_extra():
        assert one.specifier.contains(PINS[canonicalize_name(one.name)]), one


@pytest.mark.parametrize("package", ["nncf", "onnx", "onnxruntime", "onnxscript", "openvino", "onnx-ir"])
def test_the_pins_satisfy_what_the_packages_require(package: str) -> None:
    assert version(package).split("-")[0] == PINS[package]
    for text in requires(package) or []:
        one = Requirement(text)
        pin = PINS.get(canonicalize_name(one.name))
        if pin is not None and (one.marker is None or one.marker.evaluate({"extra": ""})):
            assert one.specifier.contains(pin), f"{package} requires {one}, constraints.txt has {pin}"
