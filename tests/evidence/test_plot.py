"""Line charts: well-formed, every series and number in them, on any page."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from kvgraft.evidence.plot import Axis, Panel, Series, line_charts

SVG = "{http://www.w3.org/2000/svg}"


def panel(points: list[tuple[float, float | None]], log: bool = True, **more: object) -> Panel:
    return Panel(
        "A & B <c>",
        Axis("offset (tokens)", log=True),
        Axis("KL (nats)", log),
        [Series("s", points)],
    )


def parsed(panels: list[Panel]) -> ElementTree.Element:
    return ElementTree.fromstring(line_charts(panels, 'A "title" & more'))


def texts(root: ElementTree.Element, tag: str) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter(SVG + tag)]


def circles(root: ElementTree.Element) -> list[tuple[float, float]]:
    return [
        (float(one.get("cx", "")), float(one.get("cy", ""))) for one in root.iter(SVG + "circle")
    ]


def test_every_series_and_number_is_there() -> None:
    many = Panel(
        "two",
        Axis("x", log=True),
        Axis("y"),
        [Series("first", [(8, 0.1 + 0.2), (128, 2.5)]), Series("second & third", [(8, 1e-17)])],
    )
    root = parsed([many, panel([(1, 2.0)])])
    assert {"first", "second & third", "s", "A & B <c>", "x", "KL (nats)"} <= set(
        texts(root, "text")
    )
    titles = texts(root, "title")
    assert titles[0] == 'A "title" & more'
    assert "first, x 8: 0.30000000000000004" in titles  # not a digit lost
    assert "second & third, x 8: 1e-17" in titles
    assert len(circles(root)) == 4
    assert "8: 0.30000000000000004; 128: 2.5" in texts(root, "desc")


def test_what_was_not_measured_is_a_gap_and_not_zero() -> None:
    root = parsed([panel([(1, 1.0), (10, None), (100, float("inf")), (1000, 3.0)])])
    assert len(circles(root)) == 2
    assert texts(root, "desc") == ["1: 1.0; 10: not measured; 100: inf; 1000: 3.0"]
    paths = [one.get("d", "") for one in root.iter(SVG + "path")]
    (line,) = [path for path in paths if path.count("M") == 2]
    assert "L" not in line  # two single points, not joined over the gap


def test_zero_on_a_logarithmic_axis_has_a_line_of_its_own() -> None:
    root = parsed([panel([(8, 0.0), (128, 1e-3), (1024, 1e-2)])])
    (zero, low, high) = circles(root)
    assert zero[1] > low[1] > high[1]  # further down the page
    assert {"0", "0.001", "0.01"} <= set(texts(root, "text"))


@pytest.mark.parametrize(
    "points",
    [[], [(1, None)], [(5, 0.0)], [(5, 7.0)], [(1, 1e-300), (2, 1e300)], [(1, -3.0), (9, 4.0)]],
)
@pytest.mark.parametrize("log", [True, False])
def test_any_numbers_stay_inside(points: list[tuple[float, float | None]], log: bool) -> None:
    root = parsed([panel(points, log)])
    for x, y in circles(root):
        assert 74 <= x <= 440
        assert 34 <= y <= 250
    labels = [one for one in root.iter(SVG + "text") if one.get("text-anchor") == "end"]
    assert 2 <= len(labels) <= 11


def test_readable_on_light_and_dark_pages() -> None:
    drawn = line_charts([panel([(1, 1.0)])], "t")
    assert "prefers-color-scheme:dark" in drawn
    assert 'fill="#fff"' in drawn  # for viewers that read no style sheet


def test_panels_do_not_overlap() -> None:
    for count, size in ((1, (460, 345)), (2, (920, 345)), (4, (920, 662)), (5, (1380, 662))):
        root = parsed([panel([(1, 1.0)])] * count)
        assert (int(root.get("width", "")), int(root.get("height", ""))) == size
        places = [one.get("transform") for one in root.iter(SVG + "g") if one.get("transform")]
        assert len(set(places)) == count
