"""Sections of a report's page for whoever repeats it: machine, fingerprint, raw data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgraft.evidence.report import to_json
from kvgraft.evidence.report_html import Html, broken, download, el, facts, section


def rest_sections(data: Mapping[str, Any]) -> list[Html]:
    """Machine, fingerprint and raw data."""
    return [_environment(data), _fingerprint(data), _raw(data)]


def _environment(data: Mapping[str, Any]) -> Html:
    pairs = [(line["name"], broken(line["detail"])) for line in data["environment"]]
    return section("environment", "Machine and software", facts(pairs))


def _fingerprint(data: Mapping[str, Any]) -> Html:
    return section(
        "fingerprint",
        "Fingerprint",
        el(
            "p",
            "Everything that can change a bit of a stored memory, by content and never by name."
            " Memory of another fingerprint is not used: kvgraft computes again, and says which"
            " field differs.",
        ),
        facts([("digest", el("code", data["fingerprint_digest"]))]),
        facts(
            [
                (name, el("code", broken(value)))
                for name, value in sorted(data["fingerprint"].items())
            ]
        ),
    )


def _raw(data: Mapping[str, Any]) -> Html:
    return section(
        "raw",
        "Raw data",
        el("p", "All of it is inside this page; nothing is fetched."),
        el(
            "ul",
            download(
                "kvgraft-report.json",
                "application/json",
                to_json(data),
                "everything on this page, unrounded; kvgraft report --from makes the page of it",
            ),
            download(
                "kvgraft-logits.sha256",
                "text/plain",
                logits_digests(data),
                "SHA-256 of all logits of every run",
            ),
            download(
                "kvgraft-objects.blake3",
                "text/plain",
                object_digests(data),
                "BLAKE3 of every stored object",
            ),
            class_="downloads",
        ),
    )


def logits_digests(data: Mapping[str, Any]) -> str:
    """A digest a line, as `sha256sum` prints them: of the run that computed a prompt whole, then
    of the one that continued from stored memory."""
    return "".join(
        f"{row[f'{kind}_sha256']}  sample-{row['sample']:04d}-{row['tokens']}-tokens.{name}\n"
        for row in data["proof"]["rows"]
        for kind, name in (("cold", "computed"), ("graft", "continued"))
    )


def object_digests(data: Mapping[str, Any]) -> str:
    """A digest a line of what the first process stored, by key and role."""
    pairs = sorted(data["proof"]["raw_digests"].items())
    return "".join(f"{stored}  {name}\n" for name, (stored, _) in pairs)
