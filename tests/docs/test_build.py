"""The pages as Sphinx renders them, and as a browser shows them."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

import weft
from browser import Browser, chromium
from pages import DOCS

pytestmark = pytest.mark.slow

PHONE, DESK = (390, 844), (1280, 800)  # CSS pixels
WIDE_PICTURES, WIDE_AT_A_DESK = 40, 75  # of some 480 blocks
LONGEST = 300.0  # seconds that building may take on two cores
LOOKED_AT = (
    "index", "use", "tested", "cookbook/windows", "cookbook/mp2", "api/contract", "numbers", "commands/explain",
    "figures",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as `make docs` builds them: a warning is an error."""
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(folder)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < LONGEST
    return folder


def test_pages_have_what_they_need(site: Path) -> None:
    """Every public name can be linked to, and options come from the command."""
    interface = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    for name in set(weft.__all__) - {"__version__"}:
        assert f'id="weft.{name}"' in interface or f'id="module-weft.{name}"' in interface, name
    assert "--workspace-limit" in (site / "commands" / "explain.html").read_text()
    assert (site / "changelog.html").exists()
    assert "Medians" in (site / "cookbook" / "transpose.html").read_text()  # times that were measured


@cache
def places(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', page.read_text()))


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Files of the site that a page links to or shows, with the place in each."""
    for target in re.findall(r'\b(?:href|src)="([^"]+)"', page.read_text()):
        parts = urlparse(html.unescape(target))
        if not parts.scheme and not parts.netloc:
            yield (page.parent / unquote(parts.path)).resolve() if parts.path else page, unquote(parts.fragment)


def pages_of(site: Path) -> list[Path]:
    """All pages; what the theme has of its own are templates."""
    return sorted(page for page in site.rglob("*.html") if "_static" not in page.parts)


def test_no_link_is_broken(site: Path) -> None:
    seen = 0
    for page in pages_of(site):
        for file, place in links(page):
            assert file.exists(), f"{page.relative_to(site)}: {file}"
            if place and file.suffix == ".html":
                assert place in places(file), f"{page.relative_to(site)}: {file.name}#{place}"
            seen += 1
    assert seen > 1000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (make test-all installs it)")
    with Browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


def shown(browser: Browser, page: Path) -> None:
    """Open a page that complains of nothing and fetches nothing."""
    browser.messages.clear()
    browser.requests.clear()
    browser.open(page)
    assert browser.messages == []
    assert {address.partition(":")[0] for address in browser.requests} <= {"file", "data"}


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(...)`, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_can_be_read(site: Path, browser: Browser, size: tuple[int, int], dark: bool) -> None:
    """Nothing is wider than the window, text stands out from its ground, pictures are there."""
    browser.show_as(*size, dark=dark)
    for name in LOOKED_AT:
        shown(browser, site / f"{name}.html")
        assert browser.overhang(size[0]) == 0, name
        ground = luminance(browser.run("getComputedStyle(document.body).backgroundColor"))
        text = luminance(browser.run("getComputedStyle(document.querySelector('article')).color"))
        assert (ground < 0.5) == dark, name
        assert (max(ground, text) + 0.05) / (min(ground, text) + 0.05) > 7, name  # WCAG's AAA
        assert browser.run("[...document.images].every((image) => image.complete && image.naturalWidth > 100)"), name


def test_every_page_leads_on(site: Path, browser: Browser) -> None:
    """The left bar of every page has all sections, and the pages of the page's own."""
    browser.show_as(*DESK, dark=False)
    sections = {"learn", "use", "with_others", "speed", "trust", "reference", "project"}
    seen = "[...document.querySelectorAll('.bd-sidebar-primary nav a')].filter((link) => link.checkVisibility())"
    for page in pages_of(site):
        browser.open(page)
        linked = {Path(urlparse(link).path) for link in browser.run(f"{seen}.map((link) => link.href)")}
        assert sections <= {file.stem for file in linked if file.parent == site}, page.relative_to(site)
        assert len(linked) >= len(sections) + 4, page.relative_to(site)


def scrolling(browser: Browser, page: Path) -> list[str]:
    """The kinds of the blocks of code that are wider than the place they have."""
    browser.open(page)
    found: list[str] = browser.run(
        "[...document.querySelectorAll('article div.highlight')].filter((block) => block.querySelector('pre')"
        ".scrollWidth > block.clientWidth + 1).map((block) => block.parentElement.className)"
    )
    return found


def test_code_can_be_read_on_a_phone(site: Path, browser: Browser) -> None:
    """Lines of code wrap; only pictures made of letters may be wider than the window, and few are."""
    browser.show_as(*PHONE, dark=False)
    wide = [(page, kind) for page in pages_of(site) for kind in scrolling(browser, page)]
    assert [each for each in wide if "highlight-text" not in each[1]] == []
    assert len(wide) <= WIDE_PICTURES


def test_code_fits_between_the_bars_of_a_desk(site: Path, browser: Browser) -> None:
    """Kernels of the ladder, signatures of the interface and pictures may be wider."""
    browser.show_as(*DESK, dark=False)
    assert sum(len(scrolling(browser, page)) for page in pages_of(site)) <= WIDE_AT_A_DESK


def test_no_page_is_wider_than_a_phone(site: Path, browser: Browser) -> None:
    browser.show_as(*PHONE, dark=False)
    for page in pages_of(site):
        browser.open(page)
        assert browser.overhang(PHONE[0]) == 0, page.relative_to(site)


def test_search_works_offline(site: Path, browser: Browser) -> None:
    """The pages are opened as files, so there is no server to ask."""
    browser.show_as(*DESK, dark=False)
    shown(browser, site / "search.html?q=epilogue")
    found = 'document.querySelectorAll("#search-results li a").length'
    end = time.monotonic() + 20
    while browser.run(found) <= 5 and time.monotonic() < end:
        time.sleep(0.1)
    assert browser.run(found) > 5
    assert browser.messages == []
