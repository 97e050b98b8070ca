"""What a release says about itself: one version, valid classifiers and extras, a source archive that is whole."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from helpers import list_repository

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNRELEASED = (".ci/", ".github/", ".gitignore")  # of the repository alone


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert str(Version(version)) == version
    citation = yaml.safe_load(read("CITATION.cff"))
    [(newest, date), *_] = re.findall(r"^## \[([\d.a-z]+)\] - ([\d-]+)$", read("CHANGELOG.md"), re.M)
    assert (citation["version"], citation["date-released"]) == (newest, date) == (version, citation["date-released"])
    assert not re.findall(r"__version__ *=", "".join(read(str(path)) for path in (ROOT / "src").rglob("*.py")))


def test_the_changelog_has_the_sections_of_keep_a_changelog() -> None:
    headings = re.findall(r"^(##+) (.+)$", read("CHANGELOG.md"), re.M)
    assert headings[0] == ("##", "[Unreleased]")
    assert {title for marks, title in headings if marks == "###"} <= {
        "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"
    }  # fmt: skip


def test_the_citation_has_what_its_format_requires() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]
    for reference in citation["references"]:
        assert {"authors", "title", "type"} <= reference.keys()


def test_classifiers_are_known_and_include_the_oldest_python() -> None:
    trove = pytest.importorskip("trove_classifiers")
    assert [name for name in PROJECT["classifiers"] if name not in trove.classifiers] == []
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["classifiers"]
    assert [url for url in PROJECT.get("urls", {}).values() if not url.startswith("https://")] == []


def test_extras_name_packages_and_extras_that_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    for requirement in (Requirement(line) for lines in (PROJECT["dependencies"], *extras.values()) for line in lines):
        if requirement.name == "bertwright":
            assert requirement.extras <= extras.keys()
        else:
            assert requirement.specifier, f"{requirement}: no oldest version"


def test_the_pinned_versions_satisfy_every_requirement() -> None:
    pinned = dict(line.split("==") for line in read("constraints.txt").splitlines() if not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pinned.items()}
    for requirement in map(Requirement, chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is None or version in requirement.specifier, requirement


def test_issue_forms_have_fields_with_labels() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name != "config.yml":
            assert all(field["attributes"]["label"] for field in form["body"])


def test_the_source_archive_is_the_repository(tmp_path: Path) -> None:
    names = list_repository()
    for name in names:
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes((ROOT / name).read_bytes())
    program = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    built = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "tree", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    [archive] = (tmp_path / "tree" / "dist").glob("bertwright-*.tar.gz")
    with tarfile.open(archive) as tar:
        packed = {member.name.partition("/")[2] for member in tar if member.isfile()}
    missing = [name for name in names if name not in packed and not name.startswith(UNRELEASED)]
    assert missing == []


def test_no_file_of_the_release_names_a_folder_of_this_machine() -> None:
    here = re.compile(rb"/(?:work|home|root)/[a-z]+[/ \"']|" + re.escape(bytes(ROOT)) + rb"\b")
    written = (".md", ".py", ".toml", ".txt", ".cff", ".sh", ".cpp", ".h", ".ipynb", ".yml")
    named = [name for name in list_repository() if name.endswith(written) and here.search((ROOT / name).read_bytes())]
    assert named == []
