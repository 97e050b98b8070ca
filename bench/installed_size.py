"""Megabytes that `pip install bertwright` brings, without torch and what it requires: the core, and the extra `all`.

    python bench/installed_size.py

Counted are the files of the packages in this environment, of all that they require, and of no other package. The result
is written to results/installed_size.json.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from environment import RESULTS, make_parser, write_result


def collect(package: str, extra: str = "") -> dict[str, Distribution]:
    """Return a package with an extra, and all that it requires."""
    found: dict[str, Distribution] = {}
    waiting, seen = [(package, extra)], set[tuple[str, str]]()
    while waiting:
        name, extra = waiting.pop()
        name = re.sub("[-_.]+", "-", name).lower()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform
        for needed in map(Requirement, found[name].requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, one) for one in ("", *needed.extras)]
    return found


def size(package: Distribution) -> int:
    """Return the bytes of a package's files."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    make_parser(__doc__).parse_args()
    sizes: dict[str, dict[str, float]] = {}
    of_torch = collect("torch")
    for title, extra in (("core", ""), ("all", "all")):
        packages = [one for name, one in collect("bertwright", extra).items() if name not in of_torch]
        sizes[title] = {"packages": len(packages), "megabytes": round(sum(map(size, packages)) / 1e6, 1)}
        print(f"{title}: {sizes[title]} without torch and what it requires")
    write_result(RESULTS / "installed_size.json", sizes)


if __name__ == "__main__":
    main()
