"""Line charts as SVG, written by hand: readable on a light and on a dark page, no number lost.

Every point carries its exact value as a tooltip (`<title>`), every series all of its values as a
description (`<desc>`). A value of 0 on a logarithmic axis lies on a line of its own at the foot;
what was not measured, or is not finite, is a gap in the line and stands in the description.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FOOT = 460, 300, 74, 20, 34, 50
_LEGEND_ROW, _ZERO_BAND = 17, 18
# Okabe and Ito's palette (2008) for readers who see colours differently; dashes tell them apart
# without any colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("", "6 3", "2 3", "9 3 2 3")
# What a light page needs stands in attributes, for viewers that read no style sheet.
_DARK = """@media(prefers-color-scheme:dark){.page{fill:#16181c}.ink{fill:#ddd}
.grid{stroke:#333940}.axis{stroke:#99a}}"""


@dataclass(frozen=True)
class Axis:
    """`label` says the unit too."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Series:
    """A named line through `(x, y)`; a `y` of None was not measured."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Panel:
    """One chart."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]


def line_charts(panels: Sequence[Panel], title: str) -> str:
    """One SVG document with the panels side by side, at most three in a row, four in two rows.

    A series has the colour of its place in its panel.
    """
    most = max((len(panel.series) for panel in panels), default=0)
    height = _HEIGHT + most * _LEGEND_ROW
    columns = 2 if len(panels) == 4 else min(3, max(1, len(panels)))
    whole = (columns * _WIDTH, -(-len(panels) // columns) * height + 28)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole[0]} {whole[1]}"'
        f' width="{whole[0]}" height="{whole[1]}" role="img">',
        f"<title>{escape(title)}</title><style>{_DARK}</style>",
        f'<rect class="page" width="{whole[0]}" height="{whole[1]}" fill="#fff"/>',
        '<g class="ink" fill="#222" font-family="system-ui,sans-serif" font-size="12">',
        f'<text font-weight="600" x="{_LEFT}" y="20">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        out.append(f'<g transform="translate({column * _WIDTH} {row * height + 24})">')
        out += [*_panel(panel), "</g>"]
    return "\n".join([*out, "</g></svg>"]) + "\n"


class _Scale:
    """Numbers to places along one axis, and where its ticks are."""

    def __init__(self, axis: Axis, values: Sequence[float], low: float, high: float) -> None:
        """`low` and `high`: the places of the axis' two ends."""
        self._log = axis.log
        self._zero = low
        shown = [value for value in values if not axis.log or value > 0]
        # Logarithms of what is not positive do not exist: 0 gets a line of its own.
        self.has_zero = axis.log and len(shown) < len(values)
        self._low = low + (math.copysign(_ZERO_BAND, high - low) if self.has_zero else 0)
        self._high = high
        first, last = (min(shown), max(shown)) if shown else (1.0, 10.0)
        if axis.log:
            low_power, high_power = math.floor(math.log10(first)), math.ceil(math.log10(last))
            high_power = max(high_power, low_power + 1)
            every = -(-(high_power - low_power) // 8)
            self._first, self._last = float(low_power), float(high_power)
            self.ticks = [10.0**n for n in range(low_power, high_power + 1, every)]
        else:
            first = min(0.0, first)
            step = _nice((max(last, first) - first) / 5)
            count = max(1, math.ceil((last - first) / step - 1e-9))
            self._first, self._last = first, first + count * step
            self.ticks = [first + n * step for n in range(count + 1)]

    def at(self, value: float) -> float:
        """The place of a value, in pixels."""
        if self._log and value <= 0:
            return self._zero
        value = math.log10(value) if self._log else value
        share = (value - self._first) / (self._last - self._first)
        return self._low + share * (self._high - self._low)


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten; 1 where there is no extent."""
    if step <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(step))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _panel(panel: Panel) -> list[str]:
    right, foot = _WIDTH - _RIGHT, _HEIGHT - _FOOT
    points = [point for series in panel.series for point in _drawn(series)]
    x = _Scale(panel.x, [point[0] for point in points], _LEFT, right)
    y = _Scale(panel.y, [point[1] for point in points], foot, _TOP)
    out = [f'<text font-weight="600" x="{_LEFT}" y="20">{escape(panel.title)}</text>']
    for value in [*([0.0] if y.has_zero else []), *y.ticks]:
        at = y.at(value)
        out.append(f'<path class="grid" stroke="#ddd" d="M{_LEFT} {at:.1f}H{right}"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in [*([0.0] if x.has_zero else []), *x.ticks]:
        at = x.at(value)
        out.append(f'<path class="axis" stroke="#666" d="M{at:.1f} {foot}v4"/>')
        out.append(f'<text x="{at:.1f}" y="{foot + 17}" text-anchor="middle">{value:g}</text>')
    out.append(f'<path class="axis" stroke="#666" fill="none" d="M{_LEFT} {_TOP}V{foot}H{right}"/>')
    middle = (_LEFT + right) // 2
    label = escape(panel.x.label)
    out.append(f'<text x="{middle}" y="{foot + 36}" text-anchor="middle">{label}</text>')
    turned = f'transform="translate(14 {(_TOP + foot) // 2}) rotate(-90)"'
    out.append(f'<text {turned} text-anchor="middle">{escape(panel.y.label)}</text>')
    for number, series in enumerate(panel.series):
        out += _line(series, panel, number, x, y)
    return out


def _drawn(series: Series) -> list[tuple[float, float]]:
    """The points that have a place."""
    return [
        (px, py)
        for px, py in series.points
        if py is not None and math.isfinite(px) and math.isfinite(py)
    ]


def _line(series: Series, panel: Panel, number: int, x: _Scale, y: _Scale) -> list[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    dash = _DASHES[number % len(_DASHES)]
    style = f'stroke="{colour}" fill="none" stroke-width="2"'
    style += f' stroke-dasharray="{dash}"' if dash else ""
    every = "; ".join(
        f"{px:g}: {'not measured' if py is None else repr(float(py))}" for px, py in series.points
    )
    out = [f"<g><title>{escape(series.name)}</title><desc>{escape(every)}</desc>"]
    path, pen = "", "M"
    for px, py in series.points:
        if py is None or not (math.isfinite(px) and math.isfinite(py)):
            pen = "M"  # a gap
            continue
        at = (x.at(px), y.at(py))
        path += f"{pen}{at[0]:.1f} {at[1]:.1f}"
        pen = "L"
        said = f"{series.name}, {panel.x.label} {px:g}: {float(py)!r}"
        out.append(
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{colour}">'
            f"<title>{escape(said)}</title></circle>"
        )
    row = _HEIGHT + 4 + number * _LEGEND_ROW
    out.append(f'<path d="{path}" {style}/>' if path else "")
    out.append(f'<path d="M{_LEFT} {row - 4}h26" {style}/>')
    out.append(f'<text x="{_LEFT + 34}" y="{row}">{escape(series.name)}</text></g>')
    return out
