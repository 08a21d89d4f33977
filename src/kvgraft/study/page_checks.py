"""Sections of a study's page for whoever doubts it: what was let in, controls, near misses, the
registration and the raw data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvgraft.evidence.report_html import (
    NOT_MEASURED,
    Child,
    Html,
    broken,
    download,
    el,
    facts,
    section,
    table,
)

_CONTROLS = {
    "emptied": "library emptied",
    "shuffled": "answers permuted",
    "wrong_block": "another deposit's state grafted",
    "decoys": "near misses planted beside",
    "always_no": "verifier passes nothing",
    "always_yes": "verifier passes everything (not a control of the library)",
}


def percent(share: float) -> str:
    """`12.5 %`."""
    return f"{100 * share:.1f} %"


def deposits_section(
    place: int, words: str, data: Mapping[str, Any], model: Mapping[str, Any]
) -> Html:
    kept = model["deposits"]
    protocol = data["registration"]["protocol"]
    bound = kept["wrong_upper"]
    pairs: list[tuple[Child, Child]] = [
        ("verifier", el("code", protocol["verifier"])),
        ("it saw the key", "yes" if protocol["verifier_sees_key"] else "no"),
        ("deposited", f"{kept['deposited']:,} of {kept['problems']:,}"),
        ("replaying / text only", f"{kept['replaying']:,} / {kept['text_only']:,}"),
        ("grades", ", ".join(f"{name} {n:,}" for name, n in kept["grades"].items()) or "none"),
        ("wrong by the key", f"{len(kept['wrong']):,}"),
        (
            "wrong share, at most (95 %)",
            NOT_MEASURED if bound is None else percent(bound),
        ),
    ]
    wrong = [[one["id"], one["answer"], one["grade"]] for one in kept["wrong"]]
    listed = table(
        ["problem", "answer", "grade"], wrong, caption="Deposits that are wrong by the key"
    )
    return section(
        f"deposits-{place}", f"What was let in{words}", facts(pairs), listed if wrong else None
    )


def controls_section(place: int, words: str, model: Mapping[str, Any]) -> Html:
    """Wrong libraries, and near misses."""
    rows, marks = [], []
    for name, one in model["controls"].items():
        rows.append(
            [
                _CONTROLS[name],
                f"{one['problems']:,}",
                f"{one['verified_wrongly']:,}",
                f"{one['wrong_in_the_library_too']:,}",
                f"{one['noticed']:,}",
                f"{one['same_as_bare']:,}",
                ", ".join(f"{how} {count:,}" for how, count in one["how"].items()),
            ]
        )
        marks.append("bad" if one["verified_wrongly"] and name != "always_yes" else "")
    columns = ["", "asked", "wrong, vouched for", "of the verifier's making", "noticed"]
    columns += ["as the bare model", "answers"]
    return section(
        f"controls-{place}",
        f"Controls{words}",
        el(
            "p",
            "Libraries that are wrong on purpose. Vouched for: called replayed, recorded,"
            " transferred, agreed or proved. Of the verifier's making: as wrong in the library as"
            " it is, and counted there. Noticed: a deposit was there and not believed. As the bare"
            " model: the same text, and the same logits to the last bit.",
        ),
        table(columns, rows, caption="Controls", right=(1, 2, 3, 4, 5), marks=marks)
        if rows
        else None,
        _near_misses(model.get("near_misses")),
    )


def _near_misses(near: Mapping[str, Any] | None) -> list[Html] | None:
    if near is None:
        return None
    rows = [
        [kind, f"{one['asked']:,}", f"{one['differing']:,}", f"{one['from_library']:,}"]
        for kind, one in near["kinds"].items()
    ]
    total = [f"{sum(one[key] for one in near['kinds'].values()):,}" for key in _NEAR_SUMS]
    marks = [*("bad" if one["from_library"] else "" for one in near["kinds"].values()), "sum"]
    caches = [
        [
            f"{one['measure']}, from {one['threshold']:g}",
            f"{one['answered']:,}",
            f"{one['wrong']:,}",
        ]
        for one in near["similarity_caches"]
    ]
    return [
        table(
            ["near misses", "asked", "with another answer", "answered from the library"],
            [*rows, ["all", *total]],
            caption="Near misses of stored problems",
            right=(1, 2, 3),
            marks=marks,
        ),
        table(
            ["cache by similarity", "answered", "wrongly"],
            caches,
            caption="The same questions to caches that go by similarity, for comparison",
            right=(1, 2),
        ),
    ]


_NEAR_SUMS = ("asked", "differing", "from_library")


# --- the registration and the raw data ----------------------------------------------------------


def rest_sections(data: Mapping[str, Any], raw: str) -> list[Html]:
    """What was registered, and everything to save."""
    return [_registration(data["registration"]), _raw(data, raw)]


def _registration(registration: Mapping[str, Any]) -> Html:
    pairs: list[tuple[Child, Child]] = [
        ("hash", el("code", registration["hash"])),
        ("registered at", registration["registered_at"]),
        ("problems", el("code", registration["data"]["problems_sha256"])),
        ("key", el("code", registration["data"]["key_sha256"])),
        ("code", el("code", registration["code"]["sources_sha256"])),
    ]
    for label, one in registration["models"].items():
        digest = one["fingerprint"] or "not known: behind an endpoint"
        pairs.append((f"model {label}", join_code(one["model"], digest)))
    for one in registration["amendments"]:
        pairs.append((f"code, from {one['at']}", el("code", one["code"]["sources_sha256"])))
    protocol = json.dumps(registration["protocol"], indent=2, ensure_ascii=False)
    return section(
        "registration",
        "Registration",
        el(
            "p",
            "Written before the first attempt, and never again. The key stayed closed until all"
            " results were there.",
        ),
        facts(pairs),
        el("details", el("summary", "The protocol"), el("pre", el("code", protocol))),
    )


def join_code(name: str, digest: str) -> Html:
    """A name and a digest below it."""
    return el("span", broken(name), " ", el("code", digest))


def _raw(data: Mapping[str, Any], raw: str) -> Html:
    figures = json.dumps(data, indent=1, ensure_ascii=False)
    registration = json.dumps(data["registration"], indent=1, sort_keys=True)
    links = [
        download("study-figures.json", "application/json", figures, "every figure, unrounded"),
        download(
            "study-registration.json", "application/json", registration, "what was registered"
        ),
    ]
    if raw:
        words = "every attempt and answer as it came, a line each"
        links.append(download("study-results.jsonl", "application/jsonl", raw, words))
    return section(
        "raw",
        "Raw data",
        el("p", "All of it is inside this page; nothing is fetched."),
        el("ul", links, class_="downloads"),
    )
