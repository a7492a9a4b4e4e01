"""The documentation holds together: links and anchors lead somewhere, generated pages are current.

No site is built here: `make docs` does that, and fails on the same mistakes.
"""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "examples/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
ANCHOR = re.compile(r"(?:id|name)=\"([^\"]+)\"")


def prose(path: Path) -> str:
    """The page without code, in which brackets are no links."""
    return CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))


@cache
def anchors(path: Path) -> frozenset[str]:
    """What can be linked to on a page, by the rules of GitHub and of Python-Markdown."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set(ANCHOR.findall(text))
    seen: dict[str, int] = {}
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip()
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = seen.get(slug, 0)
        seen[slug] = number + 1
        found.add(slug if number == 0 else f"{slug}-{number}")
        found.add(re.sub(r"-+", "-", slug))
    return frozenset(found)


def problems(path: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for groups in LINK.findall(prose(path)):
        target = next(filter(None, groups))
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        whole = path if not file else (path.parent / file).resolve()
        if not whole.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and whole.suffix == ".md" and anchor not in anchors(whole):
            wrong.append(f"{target}: no such heading")
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_somewhere(path):
    assert not problems(path)


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `code` heading, here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](gone.md) [b](other.md#a-code-heading-here) [c](other.md#elsewhere) `[d](no.md)`\n"
        '<img src="gone.svg">\n'
    )
    assert problems(page) == [
        "gone.md: no such file",
        "other.md#elsewhere: no such heading",
        "gone.svg: no such file",
    ]


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    root_pages = {"SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    assert listed - root_pages == there


def test_pages_written_from_code_are_current():
    pages = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["PAGES"]
    for name, page in pages.items():
        written = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert written == page(), f"docs/{name}: run `make reference`"


def test_diagrams_are_what_the_script_draws():
    pictures = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["PICTURES"]
    folder = ROOT / "docs" / "images"
    for name, draw in pictures.items():
        drawn = (folder / name).read_text(encoding="utf-8")
        assert drawn == draw(), f"docs/images/{name}: run `make reference`"
        assert "http" not in drawn.replace("http://www.w3.org/2000/svg", ""), "it loads nothing"
