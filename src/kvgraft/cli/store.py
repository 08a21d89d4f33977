"""`kvgraft store`: what lies in a store, whether it is sound, and its index made anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import counted, size, write_document, write_facts, write_line, write_table
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import existing_chunks, store_folder
from kvgraft.errors import CheckFailed

if TYPE_CHECKING:
    from kvgraft.store.index import Index
    from kvgraft.store.scan import Problem

_MOST_LINES = 50  # on a terminal; JSON has all


def stats_command(store: options.Store = None, as_json: options.AsJson = False) -> None:
    """Count what a store holds, by role and by maker.

    Reads the index alone, no pack.
    """
    from kvgraft.store.check import stats

    with existing_chunks(store) as chunks:
        found: Mapping[str, Any] = stats(chunks)
    if as_json:
        write_document(found)
        return
    write_facts(
        [
            ("store", str(store_folder(store))),
            ("packs", f"{found['packs']:,}, {size(found['pack_bytes'])}"),
            ("objects", f"{found['objects']:,}"),
            ("alarms", f"{found['alarms']:,}" + (" (see store check)" if found["alarms"] else "")),
        ]
    )
    write_line()
    write_table(
        ["role", "objects", "bytes"],
        [
            [role, f"{count['objects']:,}", size(count["payload_bytes"])]
            for role, count in found["roles"].items()
        ],
        right=["objects", "bytes"],
    )
    write_line()
    write_table(
        ["made by", "engine", "dtype", "plan", "objects", "bytes"],
        [_maker_row(maker) for maker in found["fingerprints"]],
        right=["objects", "bytes"],
    )


def check_command(store: options.Store = None, as_json: options.AsJson = False) -> None:
    """Check every byte of a store against its digests.

    Packs, fingerprints and the index are compared. Writes nothing. Alarms that were raised
    earlier (damage found while reading, drift) are named as well. Status 1 when something is
    wrong now.
    """
    from kvgraft.store.check import check_store

    with existing_chunks(store) as chunks, Watch("checking the store") as watch:
        report = check_store(chunks, watch.reading)
        alarms = _alarms(chunks.index)
    document = {**report.as_dict(), "alarms": alarms}
    if not as_json:
        write_facts(
            [
                ("store", str(store_folder(store))),
                ("read", f"{size(report.size_bytes)} in {report.packs:,} sound packs"),
                ("objects", f"{report.objects:,} sound, {report.unlisted_objects:,} not listed"),
                ("fingerprints", f"{report.fingerprints:,}"),
                ("problems", f"{len(report.problems):,}"),
            ]
        )
        if report.unlisted_objects:
            write_line("Not listed costs time, not truth: 'kvgraft store reindex' lists them.")
        _write_problems(report.problems)
        _write_alarms(alarms)
    if not report.ok:
        raise Stopped(
            _failed(len(report.problems), store, "what is damaged is never used; "), document
        )
    if as_json:
        write_document(document)


def reindex_command(store: options.Store = None, as_json: options.AsJson = False) -> None:
    """Make a store's index anew from its packs.

    Only what is read and found sound is listed. No pack is changed. Status 1 when something was
    left out.
    """
    from kvgraft.store.check import reindex

    with existing_chunks(store) as chunks, Watch("making the index anew") as watch:
        report = reindex(chunks, watch.reading)
    if not as_json:
        write_facts(
            [
                ("store", str(store_folder(store))),
                ("listed", f"{report.objects:,} objects in {report.packs:,} packs"),
                ("fingerprints", f"{report.fingerprints:,}"),
                ("read", size(report.size_bytes)),
                ("left out", f"{len(report.problems):,}"),
            ]
        )
        _write_problems(report.problems)
    if not report.ok:
        raise Stopped(
            _failed(len(report.problems), store, "the rest is listed; "), report.as_dict()
        )
    if as_json:
        write_document(report.as_dict())


def _failed(problems: int, store: options.Store, consolation: str) -> CheckFailed:
    return CheckFailed(
        f"the store has {counted(problems, 'problem')}",
        where=str(store_folder(store)),
        hint=f"{consolation}a damaged pack may be deleted: its states are computed again",
    )


def _alarms(index: Index) -> list[dict[str, str]]:
    from kvgraft.state import Role

    names = {str(role.value): role.name.lower() for role in Role}
    return [{**alarm, "role": names.get(alarm["role"], alarm["role"])} for alarm in index.alarms()]


def _write_problems(problems: list[Problem]) -> None:
    if problems:
        rows = [[problem.code, problem.where, problem.what] for problem in problems]
        write_line()
        write_table(["problem", "where", "what"], rows[:_MOST_LINES])
        _write_rest(len(rows))


def _write_alarms(alarms: list[dict[str, str]]) -> None:
    if alarms:
        rows = [[a["at"], a["kind"], f"{a['role']} {a['key']}", a["detail"]] for a in alarms]
        write_line()
        write_table(["alarm at (UTC)", "kind", "object", "detail"], rows[-_MOST_LINES:])
        _write_rest(len(rows))


def _write_rest(count: int) -> None:
    if count > _MOST_LINES:
        write_line(f"and {count - _MOST_LINES} more (--json has all)")


def _maker_row(maker: Mapping[str, Any]) -> list[str]:
    fields = maker["fields"] or {}
    return [
        maker["digest"][:16],
        *(fields.get(name, "unknown") for name in ("engine", "dtype", "plan")),
        f"{maker['objects']:,}",
        size(maker["payload_bytes"]),
    ]
