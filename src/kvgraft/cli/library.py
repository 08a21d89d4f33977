"""`kvgraft library`: the deposits, one by one and all together."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import (
    counted,
    one_line,
    printable,
    write_document,
    write_facts,
    write_line,
    write_table,
)
from kvgraft.cli.session import existing_library
from kvgraft.errors import CheckFailed, RecordNotFound, StoreError
from kvgraft.limits import MAX_LISTED_DEPOSITS

if TYPE_CHECKING:
    from kvgraft.library.records import AuditEvent, Deposit, Library
    from kvgraft.library.verify.base import Case

DepositId = Annotated[
    str, typer.Argument(metavar="ID", help="A deposit's id, as 'library ls' prints it.")
]
OneId = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="This deposit alone.", show_default=False)
]


class _Others(NamedTuple):
    """Other deposits: those made with one in context, which it superseded, what superseded it."""

    made_with: tuple[str, ...]
    supersedes: str | None
    superseded_by: str | None


class Status(str, Enum):
    """Which deposits to list."""

    active = "active"
    expired = "expired"
    revoked = "revoked"
    superseded = "superseded"
    all = "all"


def ls_command(
    status: Annotated[Status, typer.Option("--status", help="Which ones.")] = Status.active,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Only this model's.", show_default=False),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, max=MAX_LISTED_DEPOSITS, metavar="N", help="At most so many."
        ),
    ] = 50,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """List deposits, newest first."""
    wanted = None if status is Status.all else status.value
    with existing_library(store, read_only=True) as library:
        found = library.list(tenant=tenant, status=wanted, model=model, limit=limit)
        total = library.count(tenant=tenant, status=wanted)
    if as_json:
        write_document({"deposits": [_brief(deposit) for deposit in found], "total": total})
        return
    write_table(
        [
            "id",
            "kept",
            "grade",
            *(["status"] if wanted is None else []),
            "model",
            "answer",
            "problem",
        ],
        [
            [
                deposit.id,
                deposit.replay.replace("_", " "),
                deposit.verdict.grade,
                *([deposit.status] if wanted is None else []),
                deposit.model,
                one_line(deposit.answer, 20),
                one_line(deposit.problem, 50),
            ]
            for deposit in found
        ],
    )
    of_model = "" if model is None else f" of {model}"
    which = "" if wanted is None else f"{wanted} "
    write_line(
        f"{len(found)}{of_model} shown; tenant {printable(tenant)}: "
        f"{counted(total, f'{which}deposit')}"
    )


def show_command(
    id: DepositId,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Show a deposit: solution, verdict, cost, history."""
    from kvgraft.library.transfer import made_with

    with existing_library(store, read_only=True) as library:
        deposit = own_deposit(library, id, tenant)
        events = library.audit(id)
        others = _Others(made_with(library, id), *library.neighbours(id))
    if as_json:
        write_document(_whole(deposit, events, others))
    else:
        _show(deposit, events, others)


def check_command(store: options.Store = None, as_json: options.AsJson = False) -> None:
    """Check the library's file and every record.

    Structure, references, digests and addresses, of all tenants. Writes nothing. Status 1 when
    something is wrong.
    """
    with existing_library(store, read_only=True) as library:
        problems = library.check()
        count = library.count(status=None)
        where = str(library.path)
    report = {"ok": not problems, "deposits": count, "problems": problems}
    if not as_json:
        for problem in problems:
            write_line(f"problem: {printable(problem)}")
        write_line(f"{counted(count, 'deposit')}, {counted(len(problems), 'problem')}")
    if problems:
        hint = "revoke damaged records ('kvgraft library revoke'), or put back a copy of the file"
        what = f"the library has {counted(len(problems), 'problem')}"
        raise Stopped(CheckFailed(what, where=where, hint=hint), report)
    if as_json:
        write_document(report)


# --- whose it is --------------------------------------------------------------------------------


def own_deposit(library: Library, id: str, tenant: str) -> Deposit:
    """The deposit, if it is the tenant's: another's is not found, as everywhere."""
    deposit = library.get(id)
    if deposit.tenant != tenant:
        raise _not_found(id, tenant)
    return deposit


def check_own(library: Library, id: str, tenant: str) -> None:
    """Refuse an id that is not the tenant's."""
    try:
        own_deposit(library, id, tenant)
    except RecordNotFound:
        raise _not_found(id, tenant) from None
    except StoreError:
        return  # damaged: nothing says whose it is, and revoking is the cure


def _not_found(id: str, tenant: str) -> RecordNotFound:
    return RecordNotFound(
        f"tenant {tenant!r} has no such deposit", where=id, hint="see 'kvgraft library ls'"
    )


# --- what is printed ----------------------------------------------------------------------------


def _brief(deposit: Deposit) -> dict[str, Any]:
    return {
        "id": deposit.id,
        "created_at": deposit.created_at,
        "status": deposit.status,
        "tenant": deposit.tenant,
        "model": deposit.model,
        "problem": deposit.problem,
        "system": deposit.system,
        "answer": deposit.answer,
        "grade": deposit.verdict.grade,
        "verifier": deposit.verdict.verifier,
        "replay": deposit.replay,
        "replay_reason": deposit.replay_reason,
        "source": deposit.source,
        "expires_at": deposit.expires_at,
        "fingerprint": deposit.fingerprint,
    }


def _whole(deposit: Deposit, events: tuple[AuditEvent, ...], others: _Others) -> dict[str, Any]:
    grounds = deposit.grounds
    return {
        **_brief(deposit),
        "address": deposit.address.hex(),
        "prompt": deposit.prompt,
        "trace": deposit.trace,
        "cue": deposit.cue,
        "token_ids": list(deposit.token_ids),
        "answer_ids": list(deposit.answer_ids),
        "verdict": asdict(deposit.verdict),
        "judged": grounds and {**asdict(grounds), "case": _case(grounds.case)},
        "verified_at": deposit.verified_at,
        "cost": dict(deposit.cost),
        "provenance": dict(deposit.provenance),
        "artifact": deposit.artifact,
        "replay_logits_sha256": deposit.replay_logits_sha256,
        "parent": deposit.parent,
        "origin": deposit.origin,
        "revoked_at": deposit.revoked_at,
        "revoke_reason": deposit.revoke_reason,
        "audit": [asdict(event) for event in events],
        "made_with": list(others.made_with),
        "supersedes": others.supersedes,
        "superseded_by": others.superseded_by,
    }


def _case(case: Case) -> dict[str, Any]:
    return {"expected": case.expected, "checks": dict(case.checks), "peers": list(case.peers)}


def _show(deposit: Deposit, events: tuple[AuditEvent, ...], others: _Others) -> None:
    verdict, grounds, made = deposit.verdict, deposit.grounds, deposit.provenance
    kept = deposit.replay.replace("_", " ")
    facts = [
        ("id", deposit.id),
        ("status", deposit.status),
        ("revoked", f"{deposit.revoked_at}: {deposit.revoke_reason}"),
        ("created", deposit.created_at),
        ("holds until", deposit.expires_at or "no end"),
        ("tenant", deposit.tenant),
        ("model", deposit.model),
        ("fingerprint", deposit.fingerprint),
        ("answer", deposit.answer),
        ("grade", f"{verdict.grade}, by {verdict.verifier} {verdict.version}"),
        ("judged with", "not kept, so not again" if grounds is None else grounds.spec),
        ("verified", deposit.verified_at),
        ("kept as", f"{kept}: {deposit.replay_reason}" if deposit.replay_reason else kept),
        ("state", f"{len(deposit.token_ids)} tokens, artifact {deposit.artifact or 'none'}"),
        ("parent", deposit.parent or "none"),
        ("copy of", deposit.origin or "none"),
        ("supersedes", others.supersedes or "none"),
        ("superseded by", others.superseded_by or "none"),
        ("source", deposit.source),
        ("provenance", ", ".join(f"{n} {_value(v)}" for n, v in made.items()) or "not kept"),
        ("made with it", ", ".join(others.made_with) or "none"),
        ("effort", " + ".join(rung["rung"] for rung in deposit.cost.get("rungs", ())) or "none"),
        (
            "cost",
            ", ".join(f"{n} {_value(v)}" for n, v in deposit.cost.items() if n != "rungs"),
        ),
    ]
    if deposit.revoked_at is None:
        facts = [fact for fact in facts if fact[0] != "revoked"]
    write_facts(facts)
    for title, text in (
        ("system", deposit.system),
        ("problem", deposit.problem),
        ("solution", deposit.trace),
    ):
        if text is not None:
            write_line(f"\n--- {title} ---\n{printable(text)}")
    write_line("\n--- history ---")
    for event in events:
        write_line(f"{event.at}  {event.event}  {printable(event_words(event))}")


def event_words(event: AuditEvent) -> str:
    """What the log says of an event, for people."""
    return ", ".join(
        f"{name} {'none' if value is None else value}" for name, value in event.detail.items()
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "not measured" if value is None else str(value)
