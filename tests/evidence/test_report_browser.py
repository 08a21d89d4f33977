"""The page in a real browser, without a network: what anybody sees who opens it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page, browser
from kvgraft.evidence.report_page import page, verdict
from report_data import a_failed_report, report_data

pytestmark = pytest.mark.browser

WINDOWS = {"desk": (1280, 800), "telephone": (390, 844), "paper": (794, 1123)}
REPORTS: dict[str, Callable[[], dict[str, Any]]] = {
    "passed": report_data,
    "failed": a_failed_report,
}
# The lower edge of everything in which one of the sentences stands.
_PLACES = """(words => [...document.querySelectorAll('h1, .also, .stamp, .figure')]
  .filter(one => one.matches('.stamp') || words.some(word => one.textContent.includes(word)))
  .map(one => { const at = one.getBoundingClientRect();
    return [at.top, at.bottom, at.left, at.right, at.width] }))"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module", params=REPORTS)
def report(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[dict[str, Any], Path]:
    data = REPORTS[request.param]()
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(data), encoding="utf-8")
    return data, path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("window", WINDOWS)
def test_it_looks_as_it_should(
    chromium: Page, report: tuple[dict[str, Any], Path], window: str, dark: bool
) -> None:
    data, path = report
    width, height = WINDOWS[window]
    chromium.look(width, height, dark=dark, print_=window == "paper")
    chromium.open(path)
    assert chromium.requests() == [path.as_uri()]  # itself, and nothing else
    assert chromium.complaints() == []
    assert chromium.evaluate("document.compatMode") == "CSS1Compat"
    # Nothing is wider than the window; wide tables scroll by themselves.
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    outside = chromium.evaluate(
        "[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll *, svg *')"
        f" && one.getBoundingClientRect().right > {width} + 1).map(one => one.outerHTML)"
    )
    assert outside == []
    # The verdict is on the first screen, all of it.
    places = chromium.evaluate(f"{_PLACES}({json.dumps(verdict(data))})")
    assert len(places) == 1 + len(verdict(data))
    for top, bottom, left, right, wide in places:
        assert 0 <= top < bottom <= height
        assert 0 <= left < right <= width
        assert wide > 0
    shapes = chromium.evaluate(
        "[...document.querySelectorAll('svg')].map(one => {"
        " const at = one.getBoundingClientRect(); return [at.width, at.height] })"
    )
    assert len(shapes) == (3 if data["probe"] else 1)
    assert all(wide > 250 and high > 150 for wide, high in shapes)


def test_letters_stand_out_from_what_is_behind_them(
    chromium: Page, report: tuple[dict[str, Any], Path]
) -> None:
    """A contrast of 4.5 to 1, as WCAG 2 asks for, for all that is read."""
    for dark in (False, True):
        chromium.look(1280, 800, dark=dark)
        chromium.open(report[1])
        assert chromium.evaluate(_CONTRASTS) == []


_CONTRASTS = """(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const part = x => (x /= 255) <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  const behind = one => { for (; one; one = one.parentElement) {
    const colour = parse(getComputedStyle(one).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour; } return [255, 255, 255]; };
  const low = [];
  for (const one of document.querySelectorAll('body *')) {
    if (one.closest('svg') || ![...one.childNodes].some(n => n.nodeType == 3 && n.data.trim()))
      continue;
    const pair = [light(parse(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(...pair) + .05) / (Math.min(...pair) + .05);
    if (ratio < 4.5) low.push([ratio, one.outerHTML.slice(0, 120)]);
  }
  return low; })()"""


def test_the_downloads_decode_to_the_data(
    chromium: Page, report: tuple[dict[str, Any], Path]
) -> None:
    data, path = report
    chromium.open(path)
    links = chromium.evaluate(
        "[...document.querySelectorAll('a[download]')].map(one => [one.download, one.href])"
    )
    assert [name for name, _ in links] == [
        *("kvgraft-report.json", "kvgraft-logits.sha256", "kvgraft-objects.blake3"),
    ]
    assert json.loads(base64.b64decode(links[0][1].split(",", 1)[1])) == data


def test_a_click_saves_the_file(
    chromium: Page, report: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    data, path = report
    chromium.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.open(path)
    chromium.evaluate("document.querySelector('a[download]').click()")
    chromium.until(
        lambda one: (
            one["method"] == "Page.downloadProgress" and one["params"]["state"] == "completed"
        )
    )
    assert json.loads((tmp_path / "kvgraft-report.json").read_bytes()) == data
    assert [url for url in chromium.requests() if not url.startswith(("data:", "file:"))] == []


def test_links_lead_somewhere(chromium: Page, report: tuple[dict[str, Any], Path]) -> None:
    chromium.look(1280, 800)
    chromium.open(report[1])
    lost = chromium.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map(one => one.hash.slice(1))"
        ".filter(name => !document.getElementById(name))"
    )
    assert lost == []
    chromium.evaluate("document.querySelector('nav a[href=\"#raw\"]').click()")
    assert chromium.evaluate("location.hash") == "#raw"
