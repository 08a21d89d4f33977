"""The page of a study: its first screen says what was found, the rest shows it.

One file, without scripts and without a network, like the page of `kvgraft report`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from kvgraft.evidence.report_html import (
    NOT_MEASURED,
    Html,
    counted,
    document,
    el,
    three,
)
from kvgraft.study.findings import of
from kvgraft.study.items import GROUPS, HELD_OUT, RECURRING
from kvgraft.study.page_checks import rest_sections
from kvgraft.study.page_sections import model_sections

_WORDS = {RECURRING: "recurring", HELD_OUT: "held out", "new": "new"}


def page(data: Mapping[str, Any], raw: str = "") -> str:
    """The whole page. `data` is what `kvgraft.study.report` makes; `raw` is all results as JSON
    lines, to be saved from the page."""
    parts = [
        one for label, model in data["models"].items() for one in model_sections(data, label, model)
    ]
    body = el("body", _top(data), el("main", parts, rest_sections(data, raw)), _foot(data))
    return document(f"{data['name']}: kvgraft study", body)


def first_lines(data: Mapping[str, Any]) -> list[str]:
    """What the first screen says: the headline, and two sentences more."""
    lines = data["findings"]
    controls = [line for line in lines if line.lower().startswith("controls")]
    return [*lines[:2], *controls[:1]]


def _top(data: Mapping[str, Any]) -> Html:
    headline, *more = first_lines(data)
    wrong = data["controls_verified_wrongly"]
    stamp = "No controls" if wrong is None else "✗ CONTROLS FAILED" if wrong else "✓ Controls held"
    registration = data["registration"]
    counts = ", ".join(f"{data['problems'][name]:,} {_WORDS[name]}" for name in GROUPS)
    return el(
        "header",
        el(
            "p",
            el("b", "kvgraft study"),
            el("span", data["name"]),
            el("time", registration["registered_at"][:10], datetime=registration["registered_at"]),
            class_="eyebrow",
        ),
        el(
            "div",
            el("p", stamp, class_="stamp"),
            el("h1", headline),
            [el("p", line, class_="also") for line in more],
            class_=f"verdict {'fail' if wrong else 'pass'}",
        ),
        el("p", f"{data['question']} Problems: {counts}.", class_="lead"),
        el("dl", list(_figures(data)), class_="figures"),
        el(
            "div",
            el("div", el("h2", "What was found"), el("ul", _found(data))),
            el("div", el("h2", "Repeat it"), _repeat(data)),
            class_="two",
        ),
        el("nav", [el("a", title, href=f"#{anchor}") for anchor, title in _chapters(data)]),
    )


def _found(data: Mapping[str, Any]) -> list[Html]:
    shown = set(first_lines(data))
    return [el("li", line) for line in data["findings"] if line not in shown]


def _repeat(data: Mapping[str, Any]) -> list[Html]:
    command = shlex.join(["kvgraft", "study", "run", "PROTOCOL.json", "--out", "study"])
    amended = len(data["registration"]["amendments"])
    note = f" The code was changed {counted(amended, 'time')} since." if amended else ""
    return [
        el("pre", el("code", command)),
        el(
            "p",
            "Registered before any result, as ",
            el("code", data["registration"]["hash"][:16]),
            ": see ",
            el("a", "registration", href="#registration"),
            f".{note}",
        ),
    ]


def _figures(data: Mapping[str, Any]) -> Iterator[Html]:
    label, model = next((n, one) for n, one in data["models"].items() if one["library"])
    library, bare = model["conditions"]["library"], model["conditions"]["greedy"]
    for group, words in ((RECURRING, "recurring problems right"), (HELD_OUT, "held out, right")):
        mine, alone = library[group], bare[group]
        value = NOT_MEASURED if mine is None else of(mine)
        yield _figure(value, words, "" if alone is None else f"{of(alone)} without the library")
    ratio = model["recurrence"]["ratios"]["tokens"]
    yield _figure(
        NOT_MEASURED if ratio is None else f"{three(ratio['ratio'])}×",
        "fewer tokens to recall than to solve",
        f"{counted(model['recurrence']['replayed'], 'replay')} of {label}",
    )
    kept = model["deposits"]
    yield _figure(
        NOT_MEASURED
        if not kept["deposited"]
        else f"{len(kept['wrong']):,} of {kept['deposited']:,}",
        "deposits wrong by the key",
        f"{kept['problems'] - kept['deposited']:,} of {kept['problems']:,} were not let in",
    )


def _figure(value: str, label: str, note: str) -> Html:
    quiet = "figure none" if value == NOT_MEASURED else "figure"
    return el("div", el("dt", label), el("dd", value), el("dd", note, class_="note"), class_=quiet)


def _chapters(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    many = len(data["models"]) > 1
    for number, (label, model) in enumerate(data["models"].items()):
        words = f" ({label})" if many else ""
        yield f"accuracy-{number}", f"Right answers{words}"
        yield f"cost-{number}", f"Cost{words}"
        if model["library"]:
            yield f"paired-{number}", f"Comparisons{words}"
            yield f"reuse-{number}", f"When it pays{words}"
            yield f"deposits-{number}", f"Deposits{words}"
            yield f"controls-{number}", f"Controls{words}"
        if model["risk_coverage"]:
            yield f"risk-{number}", f"Agreement{words}"
    yield from (("registration", "Registration"), ("raw", "Raw data"))


def _foot(data: Mapping[str, Any]) -> Html:
    return el(
        "footer",
        f"Made by kvgraft {data['kvgraft']}. This page loads nothing and runs no scripts.",
    )
