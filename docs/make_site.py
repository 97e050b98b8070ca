"""Build the documentation site: the pages of this repository, and a reference of the public names.

    python docs/make_site.py [OUTPUT, default build/site]

`make docs` runs it. The navigation is made of the pages that exist, with their first headings as titles. The build
fails at a warning of zensical, at a link that leads nowhere, and at anything that a browser would load from another
host.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tomli_w

ROOT = Path(__file__).parents[1]
# Pages of each section in their order; a page that is in no section, or no longer exists, is no error.
SECTIONS = {
    "Start": ["README", "docs/tour", "docs/from_other_libraries", "docs/commands", "docs/platforms"],
    "한국어": ["README.ko", "docs/tour.ko"],
    "Guide": ["docs/guide", "docs/tasks", "docs/reports", "docs/serving", "docs/export", "docs/dialects"],
    "Text vectors": ["docs/embeddings"],
    "Systems": ["docs/systems", "docs/word_vectors", "docs/translation", "docs/gpt", "docs/lessons/*"],
    "Research": ["docs/experiments", "docs/evidence", "docs/benchmarks"],
    "Large runs": ["docs/scale", "docs/gpu"],
    "Reference": ["reference/*", "docs/glossary"],
    "Project": [
        "docs/stability",
        "CHANGELOG",
        "docs/architecture",
        "docs/kernels",
        "docs/*",
        "CONTRIBUTING",
        "SECURITY",
    ],
    "Decisions": ["docs/decisions/README", "docs/decisions/*"],
}
REFERENCE = {
    "Models": ("inference", "vocabulary.vector_file", "systems"),
    "Estimators": ("estimators",),
    "Training": ("finetuning", "pretraining", "training", "tasks", "objectives", "translation"),
    "Text and vocabulary": ("corpus", "surveying", "vocabulary", "tokenstore"),
    "Plans and experiments": ("planning", "trials"),
    "Reporters": ("base", "cli"),
}
GITHUB_SLUGS = {"object": "pymdownx.slugs.slugify", "kwds": {"case": "lower"}}
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def copy_pages(source: Path) -> None:
    """Copy the pages, and every file that they link to, to the same places under `source`."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in {match[0] for match in LINK.findall(text)}:
            path = (page.parent / target).resolve()
            if path.is_dir() and not (path / "README.md").is_file():
                text = re.sub(rf"\[([^\]]+)\]\({re.escape(target)}\)", r"\1", text)  # a site lists no folders
            elif path.is_file() and path.suffix != ".md":
                (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, source / path.relative_to(ROOT))
        copy = source / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")


def write_reference(source: Path) -> None:
    """Write a page for each group of public names, which mkdocstrings fills from the docstrings."""
    stub = ast.parse((ROOT / "src/bertwright/__init__.pyi").read_text(encoding="utf-8"))
    names = [(str(node.module), node.names[0].name) for node in stub.body if isinstance(node, ast.ImportFrom)]
    (source / "reference").mkdir()
    for title in REFERENCE:
        members = [(module, name) for module, name in names if find_group(module) == title]
        lines = [f"# {title}", ""]
        for module, name in sorted(members, key=lambda member: (member[1][0].isupper(), member[1])):
            lines += [f"::: bertwright.{module}.{name}", ""]
        page = source / "reference" / f"{title.lower().replace(' ', '_')}.md"
        page.write_text("\n".join(lines), encoding="utf-8")


def find_group(module: str) -> str:
    """Return the group of a public name by its module: the longest prefix in `REFERENCE` decides."""
    rooms = {room: title for title, rooms in REFERENCE.items() for room in rooms}
    return rooms[max((room for room in rooms if f"{module}.".startswith(f"{room}.")), key=len)]


def read_title(page: Path) -> str:
    """Return the first heading of a page, without marks."""
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.M)
    return re.sub(r"[`*]", "", heading[1]) if heading else page.stem


def make_navigation(source: Path) -> list[dict[str, list[dict[str, str]]]]:
    """Return the sections with their pages that exist, each page once."""
    placed: set[Path] = set()
    navigation = []
    for section, patterns in SECTIONS.items():
        named = {source / f"{name}.md" for names in SECTIONS.values() for name in names}
        entries = []
        for pattern in patterns:
            for page in sorted(source.glob(f"{pattern}.md")):
                if page not in placed and ("*" not in pattern or page not in named):
                    placed.add(page)
                    entries.append({read_title(page): page.relative_to(source).as_posix()})
        navigation.append({section: entries})
    return navigation


def write_settings(work: Path) -> Path:
    """Write zensical's settings; fonts are the reader's, and pages open from a folder as well as from a server."""
    project = {
        "site_name": "bertwright",
        "site_description": "BERT, whole: raw text to vocabulary, to pre-training, to fine-tuned tasks",
        "docs_dir": "source",
        "site_dir": "site",
        "use_directory_urls": False,
        "nav": make_navigation(work / "source"),
        "theme": {
            "language": "en",
            "font": False,
            "features": ["navigation.sections", "navigation.top", "content.code.copy", "toc.follow"],
        },
        "markdown_extensions": {
            "tables": {},
            "toc": {"permalink": True, "slugify": GITHUB_SLUGS},
            "pymdownx": {"highlight": {}, "superfences": {}},
        },
        "plugins": {
            "mkdocstrings": {
                "handlers": {
                    "python": {
                        "paths": [str(ROOT / "src")],
                        "options": {
                            "show_source": False,
                            "show_root_heading": True,
                            "show_root_full_path": False,
                            "show_symbol_type_heading": True,
                            "separate_signature": True,
                            "show_signature_annotations": True,
                            "heading_level": 2,
                        },
                    }
                }
            }
        },
    }
    path = work / "zensical.toml"
    path.write_bytes(tomli_w.dumps({"project": project}).encode())
    return path


class Links(HTMLParser):
    """The targets, the addresses that a browser loads, and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        address = values.get("href", values.get("src", ""))
        passive = tag == "a" or values.get("rel") in ("canonical", "next", "prev")
        (self.targets if passive else self.loaded).append(address)


def check_site(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere and for each address that a browser would load from elsewhere."""
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    return [fault for page, links in pages.items() for fault in check_page(page, links, pages)]


def check_page(page: Path, links: Links, pages: dict[Path, Links]) -> Iterator[str]:
    yield from (f"{page.name}: loads {url}" for url in links.loaded if urlsplit(url).netloc)
    for url in (*links.targets, *links.loaded):
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"{page.name}: {url} does not exist"
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{page.name}: {url}: no such anchor"


def main(output: Path) -> None:
    work = ROOT / "build" / "site-work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(output, ignore_errors=True)
    (work / "source").mkdir(parents=True)
    copy_pages(work / "source")
    write_reference(work / "source")
    settings = write_settings(work)
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(settings)]
    built = subprocess.run(zensical, cwd=work, check=False)
    shutil.move(work / "site", output)
    faults = check_site(output)
    print(*faults, f"{len(list(output.rglob('*.html')))} pages in {output}", sep="\n")
    if built.returncode or faults:
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve())
