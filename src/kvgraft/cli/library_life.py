"""`kvgraft library revoke`, `expire` and `audit`: what becomes of deposits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.library import DepositId, OneId, check_own, event_words, own_deposit
from kvgraft.cli.output import counted, one_line, printable, write_document, write_line, write_table
from kvgraft.cli.session import existing_library
from kvgraft.errors import UsageError
from kvgraft.limits import MAX_LISTED_DEPOSITS

if TYPE_CHECKING:
    from kvgraft.library.deposit import AuditEvent

OptionalId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID", help="A deposit's id, as 'library ls' prints it.", show_default=False
    ),
]


def _text_option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


# --- revoke -------------------------------------------------------------------------------------


def revoke_command(
    reason: Annotated[
        str, typer.Option("--reason", metavar="WHY", help="Kept in the record's history.")
    ],
    id: OptionalId = None,
    source: Annotated[
        str | None, _text_option("--source", "S", "All that came from there: solve, ask, ...")
    ] = None,
    verifier: Annotated[
        str | None, _text_option("--verifier", "V", "All that this verifier passed, by its name.")
    ] = None,
    verifier_version: Annotated[
        str | None,
        _text_option("--verifier-version", "X", "With --verifier: this version of it alone."),
    ] = None,
    model: Annotated[
        str | None, _text_option("--model", "MODEL", "All that this model made, by its name.")
    ] = None,
    fingerprint: Annotated[
        str | None, _text_option("--fingerprint", "HEX", "All that were made under it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell which ones would be revoked.")
    ] = False,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Revoke deposits for good: one by its ID, or all that fit.

    Neither they nor the follow-ups that rest on them, nor copies of them for other engines, are
    ever answered from again. Several filters have to fit together. Deposits that were made with one
    of them in context were verified on their own: they are named, and stay.
    """
    from kvgraft.library.transfer import made_with

    filters = {
        "source": source,
        "verifier": verifier,
        "verifier_version": verifier_version,
        "model": model,
        "fingerprint": fingerprint,
    }
    if (id is None) == all(value is None for value in filters.values()):
        raise UsageError(
            "give either the ID of a deposit, or what to revoke them by",
            hint="see 'kvgraft library revoke --help'",
        )
    with existing_library(store, read_only=dry_run) as library:
        if id is not None:
            check_own(library, id, tenant)
            revoked = library.revoke(id, reason, dry_run=dry_run)
        else:
            revoked = library.revoke_where(reason=reason, tenant=tenant, dry_run=dry_run, **filters)
        later = made_with(library, *([id] if id is not None else []), *revoked)
    later = tuple(one for one in later if one not in revoked)
    if as_json:
        write_document({"revoked": list(revoked), "made_with": list(later), "dry_run": dry_run})
        return
    for one in revoked:
        write_line(f"would revoke {one}" if dry_run else f"revoked {one}")
    if not revoked:
        write_line(
            "no deposit fits, or all were revoked before"
            if id is None
            else f"{id} was revoked before; its first reason stays"
        )
    for one in later:
        write_line(f"made with it in context, and not revoked: {one}")


# --- expire -------------------------------------------------------------------------------------


def expire_command(
    id: DepositId,
    at: Annotated[
        str | None, _text_option("--at", "WHEN", "A date or time, UTC unless it says its zone.")
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--in", min=0, metavar="DAYS", help="So many days from now.", show_default=False
        ),
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="It holds for good.")] = False,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Say until when a deposit holds.

    From then on it is not found, as if it were not there; it stays in the library and may be given
    more time. Follow-ups and copies of it end no later. A time that is over ends it now.
    """
    from kvgraft.library import times

    if sum((at is not None, days is not None, never)) != 1:
        raise UsageError("give one of --at, --in and --never")
    end = times.days_ago(-days) if days is not None else at
    with existing_library(store, read_only=False) as library:
        own_deposit(library, id, tenant)
        changed = library.expire(id, end)
        end = library.get(id).expires_at
    if as_json:
        write_document({"changed": list(changed), "expires_at": end})
        return
    for one in changed:
        write_line(f"{one} holds {'for good' if end is None else f'until {end}'}")
    if not changed:
        write_line(f"{id}: nothing to change")


# --- audit --------------------------------------------------------------------------------------


def audit_command(
    id: OneId = None,
    since: Annotated[
        str | None, _text_option("--since", "WHEN", "A date or time, UTC unless it says its zone.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=MAX_LISTED_DEPOSITS, metavar="N", help="The last so many."
        ),
    ] = 100,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Show what happened to deposits, the oldest event first.

    The log can only be added to: deposits, replays that failed, verdicts given again, revocations,
    expiries, states made again.
    """
    with existing_library(store, read_only=True) as library:
        if id is not None:
            check_own(library, id, tenant)
        events = library.audit(id, tenant=tenant, since=since, limit=limit)
    if as_json:
        write_document({"events": [asdict(event) for event in events]})
        return
    write_table(["at", "event", "deposit", "detail"], [_event_row(event) for event in events])
    write_line(f"{counted(len(events), 'event')} of tenant {printable(tenant)}")


def _event_row(event: AuditEvent) -> list[str]:
    return [event.at, event.event, event.deposit, one_line(event_words(event), 160)]
