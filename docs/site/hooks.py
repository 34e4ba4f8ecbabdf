"""What MkDocs needs beside docs/: the Markdown files of the root as pages, and each file that a page links to.

On a code host the pages are read in place, so their links go to README.md, examples/ or tests/ too. Here such a link
leads to a page that shows the file. A link to what is not there stays as it is, and the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES_OF_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
LANGUAGES = {".py": "python", ".sh": "sh", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}

_LINK = re.compile(r"(?P<open>\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
_places: dict[str, str] = {}  # page of the site -> the file it is made from, from the root


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that code hosts give them, and pages that are not written yet no place."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = _slug
    missing = set(config.extra["not_written_yet"])
    written = {page for page in missing if (Path(config.docs_dir) / page).exists()}
    if written:
        raise SystemExit(f"mkdocs.yml: not_written_yet names pages that are there: {', '.join(sorted(written))}")
    config.nav = _without(config.nav, missing)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root, and one for each linked file that is neither in docs/ nor such a page."""
    _places.clear()
    for file in files.documentation_pages():
        _places[file.src_uri] = f"docs/{file.src_uri}"
    waiting = [source for source in PAGES_OF_ROOT if (ROOT / source).exists()]
    waiting += sorted({target for place in _places.values() for target in _linked_sources(place)})
    while waiting:
        source = waiting.pop()
        page = _site_path(source)
        if page in _places:
            continue
        _places[page] = source
        inclusion = InclusionLevel.UNDEFINED if source in PAGES_OF_ROOT else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page, content=_shown(source), inclusion=inclusion))
        waiting += _linked_sources(source)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links are turned from places in the repository to places in the site."""
    place = _places.get(page.file.src_uri)
    if place is None or not place.endswith(".md"):
        return markdown

    def turned(match: re.Match[str]) -> str:
        target = _target(place, match["path"])
        path = posixpath.relpath(_site_path(target), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['open']}{path if (ROOT / target).exists() else match['path']}{match['anchor'] or ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(turned, part) for index, part in enumerate(parts))


def _linked_sources(place: str) -> set[str]:
    """Files and folders outside docs/ that the page links to, from the root."""
    if not place.endswith(".md"):
        return set()
    text = _FENCE.sub("", (ROOT / place).read_text(encoding="utf-8"))
    targets = {_target(place, match["path"]) for match in _LINK.finditer(text)}
    return {
        target
        for target in targets
        if not target.startswith(("docs/", "../")) and target not in PAGES_OF_ROOT and (ROOT / target).exists()
    }


def _target(place: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))


def _site_path(source: str) -> str:
    """Where the site has a file of the repository."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return PAGES_OF_ROOT.get(source, source if source.endswith(".md") else f"source/{source}.md")


def _shown(source: str) -> str:
    """A page with the file's text; of a folder, with the names and texts of its files. Markdown is a page already."""
    path = ROOT / source
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    parts = [f"# {source}"]
    for file in files:
        heading = [] if file == path else [f"## {file.name}"]
        parts += [*heading, f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n````"]
    return "\n\n".join(parts) + "\n"


def _without(nav: Any, pages: set[str]) -> Any:
    """The navigation without these pages."""
    if isinstance(nav, list):
        return [kept for entry in nav if (kept := _without(entry, pages)) is not None]
    if isinstance(nav, dict):
        kept = {title: _without(value, pages) for title, value in nav.items()}
        return {title: value for title, value in kept.items() if value is not None} or None
    return None if nav in pages else nav


def _slug(text: str, separator: str) -> str:
    """As code hosts write it, and as tests/docs/test_links.py expects it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
