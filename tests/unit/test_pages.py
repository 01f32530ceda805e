"""What the pages name is there: files, headings, tests; and every page is reached from the README."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(REPOSITORY)
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md")
    for path in REPOSITORY.glob(pattern)
)
_TEST = re.compile(r"\btests/[\w/]+(?:\.py)?(?:::\w+)?")


@cache
def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", (REPOSITORY / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def headings(page: Path) -> frozenset[str]:
    """The names that a page's headings have in links to them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in found]
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in shown)


def links(page: Path) -> list[tuple[Path, str]]:
    """The files of ours that a page links to, and the headings."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [
        ((REPOSITORY / page.parent / file).resolve() if file else REPOSITORY / page, heading)
        for file, _, heading in (link.partition("#") for link in found if "://" not in link)
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    broken = [
        f"{path}#{heading}"
        for path, heading in links(page)
        if not path.exists() or (heading and heading not in headings(path.relative_to(REPOSITORY)))
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    missing = []
    for named in _TEST.findall((REPOSITORY / page).read_text()):
        file, _, test = named.partition("::")
        path = REPOSITORY / file
        path = path if path.exists() else path.with_suffix(".py")
        if not path.exists() or (test and f"def {test}(" not in path.read_text()):
            missing.append(named)
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, found = set(), [REPOSITORY / "README.md"]
    while found:
        page = found.pop()
        if page in reached:
            continue
        reached.add(page)
        found += [path for path, _ in links(page.relative_to(REPOSITORY)) if path.suffix == ".md"]
        found += [
            each
            for path, _ in links(page.relative_to(REPOSITORY))
            for each in path.glob("*.md")
            if path.is_dir()
        ]
    left_out = [str(page) for page in PAGES if REPOSITORY / page not in reached]
    assert left_out == []
