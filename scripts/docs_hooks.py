"""mkdocs hooks: adds the root's pages to the site and turns links that leave it into text.

The pages link to each other as files of the repository, so that the links work there too. On the
site `SECURITY.md` and the like are next to the other pages; source files are named, not linked.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages, and only what the site shows."""
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links of the site."""
    at_root = page.file.src_uri in ROOT_PAGES
    folder = "" if at_root else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def site_link(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if "://" in target or target.startswith("#"):
            return found[0]
        path, _, anchor = target.partition("#")
        whole = posixpath.normpath(posixpath.join(folder, path))
        if whole in ROOT_PAGES:
            inside = whole
        elif whole == "README.md":
            inside = "index.md"
        elif whole.startswith("docs/"):
            inside = whole.removeprefix("docs/")
        else:
            return label
        start = posixpath.dirname(page.file.src_uri) or "."
        link = posixpath.relpath(inside, start)
        return f"[{label}]({link}{'#' + anchor if anchor else ''})"

    return LINK.sub(site_link, markdown)
