"""Megabytes that `pip install bertwright` brings, without torch: the core against the dependencies of earlier versions.

    python bench/installed_size.py

Counted are the files of the packages in this environment, of all that they require, and of no other package. The result
is written to results/installed_size.json.
"""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from environment import commit, describe_machine, make_parser

FORMER = """fsspec google-crc32c huggingface_hub lazy_loader matplotlib mwparserfromhell nanotoken numpy polars rich
sacrebleu safetensors scikit-learn scipy seqeval tensorboard tokenizers tomli-w zstandard""".split()
RESULTS = Path(__file__).parent / "results" / "installed_size.json"


def normalize(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def collect(names: list[str]) -> dict[str, Distribution]:
    """Return the packages and all that they require, without torch and its own requirements."""
    found: dict[str, Distribution] = {}
    waiting = [normalize(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found or name == "torch":
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform
        for text in found[name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(normalize(needed.name))
    return found


def size(package: Distribution) -> int:
    """Return the bytes of a package's files."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    make_parser(__doc__).parse_args()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = [Requirement(text).name for text in project["dependencies"]]
    of_torch = collect([Requirement(text).name for text in distribution("torch").requires or () if "extra" not in text])
    result: dict[str, object] = {"machine": describe_machine(), "commit": commit()}
    sizes = {}
    for title, names in (("core", core), ("former", FORMER)):
        packages = collect([name for name in names if name != "torch"])
        sizes[title] = sum(size(package) for name, package in packages.items() if name not in of_torch) / 1e6
        result[title] = {"packages": len(packages), "megabytes": round(sizes[title], 1)}
        print(f"{title}: {len(packages)} packages, {sizes[title]:.1f} MB without torch and what it requires")
    result["ratio"] = round(sizes["core"] / sizes["former"], 3)
    print(f"ratio: {result['ratio']}")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
