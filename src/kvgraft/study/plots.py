"""Charts of a study: shares with their intervals, risk over coverage, and what reuse saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from kvgraft.evidence.plot import Axis, Panel, Series, line_charts

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _FOOT = 640, 176, 24, 40, 26, 46
_GOOD, _OTHER = "#D55E00", "#0072B2"  # the colours that the page's style knows
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Share:
    """A share of problems with its interval; `marked` stands out."""

    name: str
    right: int
    problems: int
    low: float
    high: float
    marked: bool = False


def share_chart(title: str, shares: Sequence[Share]) -> str:
    """An SVG document: a row for each share, a dot with its interval. Exact values stand in
    tooltips and in the description."""
    foot = _TOP + _ROW * len(shares)
    height = foot + _FOOT
    said = "; ".join(f"{s.name}: {s.right} of {s.problems}" for s in shares)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(said)}</desc>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" fill="#fff"/>',
        '<g class="ink" fill="#222" font-family="system-ui,sans-serif" font-size="13">',
        f'<text font-weight="600" x="8" y="22">{escape(title)}</text>',
    ]
    for tick in _TICKS:
        x = _place(tick)
        out.append(f'<path class="grid" stroke="#ddd" d="M{x:.1f} {_TOP - 8}V{foot}"/>')
        out.append(f'<text x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{100 * tick:g}</text>')
    middle = (_place(0) + _place(1)) / 2
    out.append(
        f'<text x="{middle:.1f}" y="{foot + 36}" text-anchor="middle">right answers in %, with 95 %'
        " intervals</text>"
    )
    for number, share in enumerate(shares):
        out += _row(share, _TOP + _ROW * number + _ROW / 2)
    return "\n".join([*out, "</g></svg>"]) + "\n"


def _row(share: Share, y: float) -> list[str]:
    colour = _GOOD if share.marked else _OTHER
    estimate = share.right / share.problems
    low, high = _place(share.low), _place(share.high)
    words = (
        f"{share.name}: {share.right} of {share.problems}, {100 * estimate:.1f} %,"
        f" from {100 * share.low:.1f} to {100 * share.high:.1f} %"
    )
    weight = ' font-weight="600"' if share.marked else ""
    return [
        f"<g><title>{escape(words)}</title>",
        f'<text x="{_LEFT - 12}" y="{y + 4:.1f}" text-anchor="end"{weight}>'
        f"{escape(share.name)}</text>",
        f'<path stroke="{colour}" stroke-width="2" fill="none"'
        f' d="M{low:.1f} {y:.1f}H{high:.1f}M{low:.1f} {y - 5:.1f}v10M{high:.1f} {y - 5:.1f}v10"/>',
        f'<circle cx="{_place(estimate):.1f}" cy="{y:.1f}" r="5" fill="{colour}"/></g>',
    ]


def _place(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def risk_chart(points: Sequence[Mapping[str, Any]]) -> str:
    """How wrong accepted answers are, over how many are accepted."""
    panel = Panel(
        "What agreement is worth",
        Axis("share of problems answered"),
        Axis("wrong share of these"),
        [
            Series("observed", [(p["coverage"], p["risk"]) for p in points]),
            Series(
                "at most, with 95 % confidence", [(p["coverage"], p["risk_upper"]) for p in points]
            ),
        ],
    )
    return line_charts([panel], "Risk over coverage")


def reuse_chart(deposit: float, reuse: float, others: Mapping[str, float], unit: str) -> str:
    """What all rounds of asking again have cost so far, with the library and without it."""
    rounds = _rounds(deposit, reuse, list(others.values()))
    series = [Series("library", [(n, deposit + n * reuse) for n in rounds])]
    series += [Series(name, [(n, n * cost) for n in rounds]) for name, cost in others.items()]
    panel = Panel("What asking again costs", Axis("rounds of asking again"), Axis(unit), series)
    return line_charts([panel], "Break-even")


def _rounds(deposit: float, reuse: float, others: Sequence[float]) -> list[int]:
    """From 0 to well beyond where the library has first paid."""
    crossings = [deposit / (cost - reuse) for cost in others if cost > reuse]
    last = min(1_000, max(4, round(2.5 * min(crossings, default=4))))
    step = max(1, last // 8)
    return [*range(0, last, step), last]
