"""Sections of a report's page about exactness: what was tested, by cut, every prompt, controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgraft.evidence.controls import FLIPPED_BIT, NEIGHBOUR, WRONG_CHUNK
from kvgraft.evidence.report_html import (
    NOT_MEASURED,
    Html,
    count,
    counted,
    el,
    facts,
    join,
    number,
    section,
    table,
)
from kvgraft.evidence.samples import DECODE_STEPS

_SHOWN_DIGITS = 16
_SHOWN_FAILURES = 20
_CUTS = {
    "boundary": "at the end of a block",
    "beside": "one token beside the end of a block",
    "tail": "further inside a block",
    "whole": "at the end of the prompt: nothing is left to compute",
}
_SHORT_CUTS = {
    "boundary": "end of a block",
    "beside": "one beside",
    "tail": "inside a block",
    "whole": "end of the prompt",
}
_CONTROLS = {
    FLIPPED_BIT: "one bit of the last stored number was turned over",
    WRONG_CHUNK: "a block of another prompt was put in the place of its own",
    NEIGHBOUR: "what belongs to each token was given to the one behind it",
}


def tested_section(data: Mapping[str, Any]) -> Html:
    """How it was tested, and the words that are needed for it."""
    block = data["engine"]["block"]
    steps = [
        "The first reads the beginning of the prompt and stores the model's memory of it on disk.",
        "The second computes the whole prompt without that store, and writes"
        f" {DECODE_STEPS} tokens more.",
        "The third takes the memory from the disk, computes only the rest, and writes"
        f" {DECODE_STEPS} tokens more.",
    ]
    terms = [
        ("token", "the unit that a model reads and writes: a word, or a part of one."),
        (
            "logits",
            "the numbers a model gives for what comes next, one for every token it knows. All that"
            " it says is chosen from them.",
        ),
        (
            "SHA-256",
            "a digest of 64 digits. Change one bit of what it is made of, and it is another one.",
        ),
        (
            "block",
            f"{count(block)} tokens. kvgraft computes a prompt in blocks, and stores it in blocks.",
        ),
    ]
    return section(
        "tested",
        "What was tested, and how",
        el(
            "p",
            f"Each of {counted(data['proof']['samples'], 'prompt')} is a piece of English text."
            " Three processes work on it, and none sees what another one got:",
        ),
        el("ol", [el("li", step) for step in steps]),
        el(
            "p",
            "The second and the third each make a SHA-256 over every bit of all logits of the rest"
            f" of the prompt and of the {DECODE_STEPS} tokens. A prompt passes when both are equal,"
            " and when the third reused exactly as much memory as it should have: a run that"
            " computes everything again would prove nothing.",
        ),
        facts([(el("dfn", word), meaning) for word, meaning in terms]),
    )


def proof_sections(data: Mapping[str, Any]) -> list[Html]:
    """By cut, every prompt, damaged memories, and the single pass, in this order."""
    proof = data["proof"]
    return [_cuts(proof), _samples(proof), _controls(proof), _monolithic(proof)]


def _cuts(proof: Mapping[str, Any]) -> Html:
    rows, marks = [], []
    for kind, words in _CUTS.items():
        mine = [row for row in proof["rows"] if row["cut"] == kind]
        equal = sum(row["equal"] for row in mine)
        used = sum(row["as_expected"] for row in mine)
        lengths = [row["tokens"] for row in mine]
        between = "–".join(f"{n:,}" for n in sorted({min(lengths), max(lengths)})) if mine else "–"
        shown = [f"{equal:,} of {len(mine):,}", f"{used:,} of {len(mine):,}", between]
        rows.append([words, *(shown if mine else ["none tried", "none tried", "–"])])
        marks.append("" if equal == used == len(mine) else "bad")
    return section(
        "cuts",
        "By the place where the stored part ends",
        el(
            "p",
            "Where stored memory ends and computing goes on is where an error would show first."
            " Whole blocks are reused; what is stored of a further one is computed again.",
        ),
        table(
            ["The stored part ends", "Same numbers", "Reused as expected", "Tokens in the prompts"],
            rows,
            caption="Prompts by the place where the stored part ends",
            right=(1, 2, 3),
            marks=marks,
        ),
    )


def _samples(proof: Mapping[str, Any]) -> Html:
    rows, marks = [], []
    for row in proof["rows"]:
        good = row["equal"] and row["as_expected"]
        rows.append(
            [
                count(row["sample"]),
                count(row["tokens"]),
                count(row["stored"]),
                el("span", _SHORT_CUTS.get(row["cut"], row["cut"]), class_="keep"),
                _against(row["reused"], row["reused_expected"]),
                _against(row["calls"], row["calls_expected"]),
                el("code", row["cold_sha256"][:_SHOWN_DIGITS]),
                el("code", row["graft_sha256"][:_SHOWN_DIGITS]),
                _result(row),
            ]
        )
        marks.append("" if good else "bad")
    columns = [
        *("No.", "Tokens", "Stored", "Stored up to", "Reused", "Steps made"),
        *("Computed whole", "Continued", "Result"),
    ]
    whole = table(
        columns,
        rows,
        caption=f"Every prompt; the first {_SHOWN_DIGITS} digits of SHA-256",
        right=(0, 1, 2, 4, 5),
        marks=marks,
    )
    failures = proof["failures"]
    more = len(failures) - _SHOWN_FAILURES
    told = [
        el("p", "What failed, as it was reported:"),
        el("ul", [el("li", el("code", line)) for line in failures[:_SHOWN_FAILURES]]),
        el("p", f"and {more:,} more, in the raw data") if more > 0 else None,
    ]
    return section(
        "samples",
        "Every prompt",
        el(
            "p",
            "A step is one run of the model over a block, or over what remains at the end. The"
            " digests are whole in the ",
            el("a", "raw data", href="#raw"),
            ".",
        ),
        told if failures else None,
        whole,
    )


def _against(seen: int, expected: int) -> str:
    return count(seen) if seen == expected else f"{seen:,}, not {expected:,}"


def _result(row: Mapping[str, Any]) -> Html:
    if not row["equal"]:
        return el("b", "DIFFERENT")
    return join(["equal"]) if row["as_expected"] else el("b", "NOT REUSED")


def _controls(proof: Mapping[str, Any]) -> Html:
    rows, marks = [], []
    for name in dict.fromkeys(row["control"] for row in proof["controls"]):
        mine = [row for row in proof["controls"] if row["control"] == name]
        served = sum(row["served"] for row in mine)
        changed = sum(row["served"] and row["changed"] for row in mine)
        done = join([name, el("small", _CONTROLS.get(name, ""), class_="below")])
        rows.append([done, *map(count, (len(mine), served, changed))])
        marks.append("" if served == changed == len(mine) else "bad")
    pairs = proof["raw_digests"].values()
    same = sum(stored == again for stored, again in pairs)
    return section(
        "controls",
        "Damaged memories",
        el(
            "p",
            "Equal digests mean little unless a wrong memory changes them. So memories were damaged"
            " on purpose and signed anew, so that no check sum could stop them. Each was used, and"
            " each must give another SHA-256.",
        ),
        table(
            ["Damage", "Tried", "Used", "Noticed"],
            rows or [["no prompt was long enough", "0", "0", "0"]],
            caption="Memories that were damaged on purpose",
            right=(1, 2, 3),
            marks=marks or ["bad"],
        ),
        el(
            "p",
            f"Made again: of {counted(len(pairs), 'stored object')} that the first process wrote,"
            f" {same:,} came out the same, byte for byte, when the second made them again.",
            class_=None if same == len(pairs) else "bad",
        ),
    )


def _monolithic(proof: Mapping[str, Any]) -> Html:
    mono = proof["monolithic"]
    text = el(
        "p",
        "Apart from the proof. Models are often run over a whole prompt in one pass. kvgraft runs"
        " them in steps, and always in the same ones. Both are right, but sums are rounded in"
        " another order, so the numbers differ a little. This comes from the model's arithmetic;"
        " no stored memory has part in it, and it counts neither for the proof nor against it.",
    )
    if not mono["samples"]:
        none = el("p", f"How much they differ: {NOT_MEASURED}. This engine makes no single pass.")
        return section("monolithic", "One pass instead of steps", text, none)
    pairs = [
        ("prompts compared", count(mono["samples"])),
        ("largest difference of a logit", number(mono["max_abs_logit"])),
        (
            "largest KL divergence",
            join(
                [
                    f"{number(mono['kl_max'])} nats ",
                    el("small", "how far apart two distributions over the next token are; 0: same"),
                ]
            ),
        ),
        ("another most likely next token", f"{mono['argmax_flips']:,} of {mono['samples']:,}"),
    ]
    rows = []
    for row in proof["rows"]:
        one = row["monolithic"]
        if one is None:
            cells = [NOT_MEASURED] * 3
        else:
            same = "same" if one["argmax_equal"] else "another"
            cells = [number(one["max_abs_logit"]), number(one["kl"]), same]
        rows.append([count(row["sample"]), count(row["tokens"]), *cells])
    whole = table(
        ["No.", "Tokens", "Largest difference", "KL (nats)", "Next token"],
        rows,
        caption="One pass against steps: the logits behind each prompt",
        right=(0, 1, 2, 3),
    )
    details = el("details", el("summary", "Show every prompt"), whole)
    return section("monolithic", "One pass instead of steps", text, facts(pairs), details)
