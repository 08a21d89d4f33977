"""Sections of a study's page with figures, for each model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvgraft.evidence.report_html import (
    NOT_MEASURED,
    Child,
    Html,
    el,
    facts,
    number,
    seconds,
    section,
    table,
    three,
)
from kvgraft.meter import Cost
from kvgraft.study.figures import UNITS, amount
from kvgraft.study.items import GROUPS, HELD_OUT, NEW, RECURRING
from kvgraft.study.page_checks import controls_section, deposits_section, percent
from kvgraft.study.plots import Share, reuse_chart, risk_chart, share_chart

NAMES = {
    "greedy": "model alone, greedy",
    "vote": "majority vote",
    "few_shot_text": "solutions as text",
    "prefix_cache": "prefix caching only",
    "answer_cache": "plain answer cache",
    "similarity_cache": "similarity cache",
    "library": "library",
}
TITLES = {
    RECURRING: "Recurring: deposited, and asked again",
    HELD_OUT: "Held out: of the same families, never deposited",
    NEW: "New: nothing like them was deposited",
}
_UNIT_WORDS = {
    "tokens": "tokens",
    "seconds": "seconds",
    "cpu_seconds": "CPU seconds",
    "joules": "joules",
}


def model_sections(data: Mapping[str, Any], label: str, model: Mapping[str, Any]) -> Iterator[Html]:
    """Everything about one model."""
    place = list(data["models"]).index(label)
    words = f" ({label})" if len(data["models"]) > 1 else ""
    yield _accuracy(place, words, model)
    yield _costs(place, words, model)
    if model["library"]:
        yield _paired(place, words, model)
        yield _reuse(place, words, model)
        yield deposits_section(place, words, data, model)
        yield controls_section(place, words, model)
    if model["risk_coverage"]:
        yield _risk(place, words, model)


def _chart(svg: str) -> Html:
    return el("figure", Html(svg), class_="chart")  # charts escape their own texts


def _accuracy(place: int, words: str, model: Mapping[str, Any]) -> Html:
    parts: list[Html | None] = [
        el(
            "p",
            "Every problem is in the denominator. An answer that was cut off by its budget is no"
            " answer. Intervals are Wilson's, at 95 %.",
        )
    ]
    for group in GROUPS:
        shown = _in_order(model, group)
        if not shown:
            continue
        shares = [
            Share(
                NAMES[name],
                one["right"],
                one["problems"],
                one["low"],
                one["high"],
                name == "library",
            )
            for name, one in shown
        ]
        parts.append(_chart(share_chart(TITLES[group], shares)))
        rows = [
            [
                NAMES[name],
                f"{one['right']:,} of {one['problems']:,}",
                f"{percent(one['low'])} to {percent(one['high'])}",
                f"{one['without_answer']:,}",
                f"{one['from_store_wrong']:,}",
                ", ".join(f"{how} {count:,}" for how, count in one["how"].items()),
            ]
            for name, one in shown
        ]
        columns = ["", "right", "interval", "no answer", "wrong from store", "answers"]
        parts.append(table(columns, rows, caption=TITLES[group], right=(1, 2, 3, 4)))
    parts.append(_families(model))
    return section(f"accuracy-{place}", f"Right answers{words}", parts)


def _in_order(model: Mapping[str, Any], group: str) -> list[tuple[str, Mapping[str, Any]]]:
    conditions = model["conditions"]
    return [
        (name, conditions[name][group])
        for name in NAMES
        if name in conditions and conditions[name][group] is not None
    ]


def _families(model: Mapping[str, Any]) -> Html | None:
    """The library against the model alone, family by family."""
    if not model["library"]:
        return None
    library, bare = model["conditions"]["library"], model["conditions"]["greedy"]
    rows = [
        [
            family,
            TITLES[group].partition(":")[0],
            f"{found['right']:,} of {found['problems']:,}",
            f"{bare[group]['families'][family]['right']:,}",
        ]
        for group in GROUPS
        if library[group] is not None
        for family, found in library[group]["families"].items()
    ]
    columns = ["family", "group", "with the library", "alone"]
    inner = table(columns, rows, caption="Right answers by family", right=(2, 3))
    return el("details", el("summary", "By family"), inner)


def _costs(place: int, words: str, model: Mapping[str, Any]) -> Html:
    parts: list[Html | None] = [
        el(
            "p",
            "Tokens are those computed, of prompts and answers; reused ones are not counted. What"
            " answers from a cache's memory cost was not measured and counts as nothing.",
        )
    ]
    for group in GROUPS:
        rows = [
            [NAMES[name], *(_per_right(one, unit) for unit in UNITS), _source(one)]
            for name, one in _in_order(model, group)
        ]
        if rows:
            columns = ["", *(_UNIT_WORDS[unit] for unit in UNITS), "joules from"]
            caption = f"Cost per right answer. {TITLES[group]}"
            parts.append(table(columns, rows, caption=caption, right=(1, 2, 3, 4)))
    return section(f"cost-{place}", f"Cost per right answer{words}", parts)


def _source(one: Mapping[str, Any]) -> str:
    return one["cost"]["joules_from"] or NOT_MEASURED


def _per_right(one: Mapping[str, Any], unit: str) -> str:
    value = one["per_right"][unit]
    if value is None:
        return NOT_MEASURED if one["right"] else "none right"
    return seconds(value) if unit in ("seconds", "cpu_seconds") else number(value)


def _paired(place: int, words: str, model: Mapping[str, Any]) -> Html:
    rows = []
    for one in model["paired"]:
        label, _, name = one["second"].rpartition(" ")
        rows.append(
            [
                f"{label}: {NAMES[name]}",
                TITLES[one["group"]].partition(":")[0],
                f"{one['only_first']:,}",
                f"{one['only_second']:,}",
                _points(one),
                f"{one['p']:.2g}",
            ]
        )
    return section(
        f"paired-{place}",
        f"The library against everything else{words}",
        el(
            "p",
            "On the same problems: how many only the library has right, how many only the other.",
            " p is McNemar's exact test, two-sided, not corrected for the number of comparisons;"
            " the difference in percentage points has a paired bootstrap interval.",
        ),
        table(
            ["against", "group", "only library", "only other", "difference", "p"],
            rows,
            caption="Paired comparisons with the library",
            right=(2, 3, 4, 5),
        ),
    )


def _points(one: Mapping[str, Any]) -> str:
    """A difference in percentage points, with its interval."""
    low, high = (f"{100 * one[end]:+.1f}" for end in ("low", "high"))
    return f"{100 * one['difference']:+.1f} ({low} to {high})"


def _reuse(place: int, words: str, model: Mapping[str, Any]) -> Html:
    found = model["recurrence"]
    rows = [
        [f"than {_WAYS[name]}", *(_reuses(costs[unit]) for unit in UNITS)]
        for name, costs in model["break_even"].items()
    ]
    ratios: list[Sequence[Child]] = [
        [words_, *(_ratio(found[key][unit]) for unit in UNITS)]
        for words_, key in (
            ("all that were replayed", "ratios"),
            ("of these, failed at first", "ratios_failed_first"),
        )
    ]
    median = found["replay_decode_tokens_median"]
    units = [_UNIT_WORDS[unit] for unit in UNITS]
    return section(
        f"reuse-{place}",
        f"When it pays{words}",
        facts(
            [
                ("replayed", f"{found['replayed_right']:,} of {found['replayed']:,} right"),
                ("tokens decoded, median", NOT_MEASURED if median is None else f"{median:g}"),
            ]
        ),
        table(["solving over replaying", *units], ratios, caption="In sum", right=(1, 2, 3, 4)),
        table(
            ["cheaper", *units],
            rows,
            caption="Rounds of asking all deposited problems again until deposits have paid,"
            " failed ones and the capture included",
            right=(1, 2, 3, 4),
        ),
        _reuse_charts(model),
    )


_WAYS = {
    "solving_again": "solving again",
    "greedy": "one greedy attempt",
    "vote": "a majority vote",
}


def _reuses(value: int | str | None) -> str:
    return NOT_MEASURED if value is None else value if isinstance(value, str) else f"{value:,}"


def _ratio(found: Mapping[str, float] | None) -> str:
    if found is None:
        return NOT_MEASURED
    return f"{three(found['ratio'])}× ({three(found['low'])} to {three(found['high'])})"


def _reuse_charts(model: Mapping[str, Any]) -> list[Html]:
    """What rounds of asking again cost, in tokens and in seconds, where both are known."""
    made = model["deposits"]["cost_with_capture"]
    if made is None:
        return []
    conditions = model["conditions"]
    ways = {"solving again": model["deposits"]["cost"]}
    ways |= {
        NAMES[name]: conditions[name][RECURRING]["cost"]
        for name in ("greedy", "vote")
        if name in conditions
    }
    asked = conditions["library"][RECURRING]["cost"]
    charts = []
    for unit in ("tokens", "seconds"):
        deposit, reuse = (amount(Cost(**one), unit) for one in (made, asked))
        others = {name: amount(Cost(**one), unit) for name, one in ways.items()}
        known = {name: cost for name, cost in others.items() if cost is not None}
        if deposit is not None and reuse is not None and len(known) == len(others):
            charts.append(_chart(reuse_chart(deposit, reuse, known, f"{unit}, all rounds")))
    return charts


def _risk(place: int, words: str, model: Mapping[str, Any]) -> Html:
    points = model["risk_coverage"]
    rows = [
        [
            percent(point["threshold"]),
            f"{point['accepted']:,}",
            f"{point['wrong']:,}",
            percent(point["risk"]),
            percent(point["risk_upper"]),
        ]
        for point in points
    ]
    return section(
        f"risk-{place}",
        f"What agreement is worth{words}",
        el(
            "p",
            "If the majority's answer is accepted from some share of agreeing attempts on: how many"
            " answers there are, and how many of them are wrong. Each bound holds for its own"
            " threshold.",
        ),
        _chart(risk_chart(points)),
        table(
            ["agreement from", "accepted", "wrong", "wrong share", "at most (95 %)"],
            rows,
            caption="Accepted by agreement",
            right=(0, 1, 2, 3, 4),
        ),
    )
