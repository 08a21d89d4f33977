"""The page of a report: its first screen says what was found, the rest shows it.

One file, readable without a network, without scripts, on paper and on a telephone. A policy in its
head forbids the browser to load anything, whatever a model's name may contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgraft.errors import InputError
from kvgraft.evidence.report import load
from kvgraft.evidence.report_figures import bytes_section, probe_section, speed_sections
from kvgraft.evidence.report_html import (
    NOT_MEASURED,
    Html,
    count,
    counted,
    document,
    el,
    join,
    number,
    seconds,
    size,
    three,
)
from kvgraft.evidence.report_proof import proof_sections, tested_section
from kvgraft.evidence.report_rest import rest_sections

_CHAPTERS = {
    "tested": "What was tested",
    "cuts": "By cut",
    "samples": "Every prompt",
    "controls": "Damaged memories",
    "monolithic": "One pass or steps",
    "speed": "Restore or compute",
    "reuses": "When it pays",
    "bytes": "Bytes per token",
    "probe": "At another place",
    "environment": "Machine",
    "fingerprint": "Fingerprint",
    "raw": "Raw data",
}


def saved_page(text: str) -> tuple[dict[str, Any], str]:
    """The data of an earlier report, and its page.

    Raises:
        InputError: not such data.
    """
    data = load(text)
    try:
        made = page(data)
        made.encode()  # half a character of two halves cannot be written
        return data, made
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"the data of a report is not whole: {type(error).__name__}: {error}"
        ) from error


def page(data: Mapping[str, Any]) -> str:
    """The whole page; `data` is what `kvgraft.evidence.report` collects or loads."""
    word = "passed" if data["passed"] else "FAILED"
    parts = [
        tested_section(data),
        *proof_sections(data),
        *speed_sections(data),
        bytes_section(data),
        probe_section(data),
        *rest_sections(data),
    ]
    body = el("body", _top(data), el("main", parts), _foot(data))
    return document(f"{word}: {data['model']}, kvgraft report", body)


def verdict(data: Mapping[str, Any]) -> list[str]:
    """What was found, in sentences for anyone: the first one is the headline."""
    proof = data["proof"]
    total, controls = proof["samples"], proof["controls"]
    if data["passed"]:
        return [
            f"{total:,} of {total:,} runs that continued from stored memory gave exactly the same"
            " numbers as runs that computed everything, bit for bit.",
            f"All {len(controls):,} deliberately damaged memories were noticed.",
        ]
    lines = []
    if other := total - proof["sha_equal"]:
        lines.append(
            f"{other:,} of {total:,} runs that continued from stored memory gave other numbers"
            " than runs that computed everything."
        )
    if unused := total - proof["reused_as_expected"]:
        lines.append(
            f"{unused:,} of {total:,} runs did not use the stored memory as they should have;"
            " they prove nothing."
        )
    if missed := sum(not (row["served"] and row["changed"]) for row in controls):
        lines.append(
            f"{missed:,} of {len(controls):,} deliberately damaged memories went unnoticed."
        )
    if not controls:
        lines.append("No damaged memory could be tried, so nothing shows that one is noticed.")
    pairs = proof["raw_digests"].values()
    if different := sum(stored != again for stored, again in pairs):
        lines.append(
            f"{different:,} of {len(pairs):,} stored objects did not come out the same when another"
            " process made them again."
        )
    known = ("sample ", "rebuilt differently")
    others = [line for line in proof["failures"] if not line.startswith(known)]
    lines += [f"{line[:1].upper()}{line[1:]}." for line in others]
    return lines or ["What was claimed does not hold in every part."]


def _top(data: Mapping[str, Any]) -> Html:
    headline, *more = verdict(data)
    passed = data["passed"]
    stamp = ("✓", "Passed") if passed else ("✗", "FAILED")
    explained = (
        "A language model that has read a text holds it in a working memory. kvgraft stores that"
        " memory and gives it back later, so that the text need not be read again."
    )
    return el(
        "header",
        el("p", el("b", "kvgraft report"), el("span", data["model"]), _day(data), class_="eyebrow"),
        el(
            "div",
            el("p", el("span", stamp[0], aria_hidden="true"), f" {stamp[1]}", class_="stamp"),
            el("h1", headline),
            [el("p", line, class_="also") for line in more],
            class_=f"verdict {'pass' if passed else 'fail'}",
        ),
        el("p", explained, class_="lead"),
        el("dl", _figures(data), class_="figures"),
        el(
            "div",
            el("div", el("h2", "What this does not show"), el("ul", _not_shown(data))),
            el(
                "div",
                el("h2", "Repeat it"),
                el("pre", el("code", data["command"])),
                el(
                    "p",
                    "The same digests are to be expected where the ",
                    el("a", "fingerprint", href="#fingerprint"),
                    " is the same: ",
                    el("code", data["fingerprint_digest"][:16]),
                ),
            ),
            class_="two",
        ),
        el("nav", [el("a", title, href=f"#{anchor}") for anchor, title in _CHAPTERS.items()]),
    )


def _day(data: Mapping[str, Any]) -> Html:
    made = data["made_at"]
    return el("time", made[:10], datetime=made)


def _figures(data: Mapping[str, Any]) -> list[Html]:
    lengths = data["lengths"]
    whole = [at for at in lengths if at["restore_seconds"] is not None]
    at = (whole or lengths)[-1]
    return [_speed(at), _bytes(at), _reuses(at), _range(data)]


def _figure(value: str | Html, label: str, note: str) -> Html:
    quiet = "figure none" if value == NOT_MEASURED else "figure"
    return el("div", el("dt", label), el("dd", value), el("dd", note, class_="note"), class_=quiet)


def _speed(at: Mapping[str, Any]) -> Html:
    compute, restore = at["compute_seconds"], at["restore_seconds"]
    if compute is None or restore is None:
        reason = at["reasons"].get("restore_seconds") or at["reasons"].get("compute_seconds", "")
        return _figure(NOT_MEASURED, "Restore against compute", reason)
    ratio = compute / restore
    word = "faster" if ratio >= 1 else "slower"
    note = f"{seconds(restore)} to restore {at['tokens']:,} tokens, {seconds(compute)} to compute"
    return _figure(f"{three(max(ratio, 1 / ratio))}×", f"{word} than computing", note)


def _bytes(at: Mapping[str, Any]) -> Html:
    kinds, packed = at["bytes_by_kind"], at["compressed_by_kind"]
    if kinds is None:
        return _figure(NOT_MEASURED, "stored per token", at["reasons"].get("bytes_by_kind", ""))
    total = sum(kinds.values())
    note = f"at {at['tokens']:,} tokens; compressed: {NOT_MEASURED}"
    if packed is not None:
        share = sum(packed.values()) / total
        note = f"{size(share * total / at['tokens'])} if compressed ({100 * share:.0f} %)"
    return _figure(size(total / at["tokens"]), "stored per token", note)


def _reuses(at: Mapping[str, Any]) -> Html:
    reuses = at["break_even_reuses"]
    if reuses is None:
        return _figure(
            NOT_MEASURED, "reuses until storing pays", at["reasons"].get("break_even_reuses", "")
        )
    saved = seconds(at["compute_seconds"] - at["restore_seconds"])
    note = f"storing took {seconds(at['capture_seconds'])} once, every reuse saves {saved}"
    return _figure(
        count(reuses),
        "reuse until storing pays" if reuses == 1 else "reuses until storing pays",
        note,
    )


def _range(data: Mapping[str, Any]) -> Html:
    tokens = [row["tokens"] for row in data["proof"]["rows"]]
    value = f"{min(tokens):,}–{max(tokens):,}"
    note = f"{counted(len(tokens), 'prompt')} of English text; a token is about a word"
    return _figure(value, "tokens per prompt", note)


def _not_shown(data: Mapping[str, Any]) -> list[Html]:
    lines = [
        _one_pass(data["proof"]["monolithic"]),
        join(
            [
                "That the answers are right. They are what the model says without stored memory,"
                " right or wrong."
            ]
        ),
        join(["Anything about other machines, models or settings than the fingerprint names."]),
        join(["Times elsewhere. Those here are of one run on this machine."]),
    ]
    if data["probe"] is not None:
        moved = el("a", "measured apart", href="#probe")
        lines.append(join(["Memory moved within a text. That is approximate, and ", moved, "."]))
    return [el("li", line) for line in lines]


def _one_pass(mono: Mapping[str, Any]) -> Html:
    link = el("a", "one single pass", href="#monolithic")
    start = join(["That kvgraft's steps equal ", link, " over the prompt. "])
    if not mono["samples"]:
        return join([start, f"How much they differ was {NOT_MEASURED}."])
    if mono["max_abs_logit"] == 0:
        total = counted(mono["samples"], "prompt")
        return join([start, f"Here they did, bit for bit for {total}; the proof does not need it."])
    return join(
        [
            start,
            f"Rounded in another order, the numbers then differ by up to"
            f" {number(mono['max_abs_logit'])}, stored memory or not, and"
            f" {mono['argmax_flips']:,} of {counted(mono['samples'], 'prompt')} get another next"
            " token.",
        ]
    )


def _foot(data: Mapping[str, Any]) -> Html:
    return el(
        "footer",
        f"Made by kvgraft {data['kvgraft']} at {data['made_at']}. This page loads nothing and runs"
        " no scripts.",
    )
