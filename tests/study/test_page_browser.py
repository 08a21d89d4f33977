"""The page of a study in a real browser, without a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page, browser
from kvgraft.study.page import first_lines, page

pytestmark = pytest.mark.browser

WINDOWS = {"desk": (1280, 800), "telephone": (390, 844), "paper": (794, 1123)}
RAW = '{"id": "a"}\n'


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def path(figures: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(figures, RAW), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("window", WINDOWS)
def test_it_looks_as_it_should(
    chromium: Page, path: Path, figures: dict[str, Any], window: str, dark: bool
) -> None:
    width, height = WINDOWS[window]
    chromium.look(width, height, dark=dark, print_=window == "paper")
    chromium.open(path)
    assert chromium.requests() == [path.as_uri()]  # itself, and nothing else
    assert chromium.complaints() == []
    assert chromium.evaluate("document.compatMode") == "CSS1Compat"
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    outside = chromium.evaluate(
        "[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll *, svg *')"
        f" && one.getBoundingClientRect().right > {width} + 1).map(one => one.outerHTML)"
    )
    assert outside == []
    # What was found is on the first screen, all of it.
    lines = chromium.evaluate(
        "[...document.querySelectorAll('.stamp, h1, .also')].map(one => {"
        " const at = one.getBoundingClientRect(); return [one.textContent, at.top, at.bottom] })"
    )
    assert [text for text, _, _ in lines[1:]] == first_lines(figures)
    assert all(0 <= top < bottom <= height for _, top, bottom in lines)
    shapes = chromium.evaluate(
        "[...document.querySelectorAll('svg')].map(one => {"
        " const at = one.getBoundingClientRect(); return [at.width, at.height] })"
    )
    assert len(shapes) == 6  # three groups, tokens and seconds of reuse, agreement
    assert all(wide > 250 and high > 90 for wide, high in shapes)


def test_links_lead_somewhere(chromium: Page, path: Path) -> None:
    chromium.look(1280, 800)
    chromium.open(path)
    lost = chromium.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map(one => one.hash.slice(1))"
        ".filter(name => !document.getElementById(name))"
    )
    assert lost == []
    chromium.evaluate("document.querySelector('nav a[href=\"#raw\"]').click()")
    assert chromium.evaluate("location.hash") == "#raw"


def test_the_downloads_decode_to_the_data(
    chromium: Page, path: Path, figures: dict[str, Any]
) -> None:
    chromium.open(path)
    links = chromium.evaluate(
        "[...document.querySelectorAll('a[download]')].map(one => [one.download, one.href])"
    )
    files = {name: base64.b64decode(link.split(",", 1)[1]) for name, link in links}
    assert json.loads(files["study-figures.json"]) == figures
    assert files["study-results.jsonl"].decode() == RAW
    assert json.loads(files["study-registration.json"])["hash"] == figures["registration"]["hash"]
