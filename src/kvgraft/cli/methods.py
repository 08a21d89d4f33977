"""`kvgraft method`: verified programs for families of problems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.ask import File, ProblemText, given_problem
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import (
    counted,
    duration,
    one_line,
    printable,
    write_document,
    write_facts,
    write_line,
    write_table,
)
from kvgraft.cli.session import existing_library, store_folder
from kvgraft.errors import CheckFailed, RecordNotFound, StoreError

if TYPE_CHECKING:
    from kvgraft.library.methods.ask import Abstained, MethodAnswer
    from kvgraft.library.methods.method import Evidence, Method
    from kvgraft.library.methods.records import MethodEvent, Methods
    from kvgraft.library.records import Library

MethodId = Annotated[
    str, typer.Argument(metavar="ID", help="A method's id, as 'method ls' prints it.")
]

# --- ls and show ----------------------------------------------------------------------------------


def ls_command(
    all: Annotated[bool, typer.Option("--all", help="Revoked ones too.")] = False,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """List methods, newest first.

    One that was learned from a deposit which was revoked since, or has expired, is fallen: it
    answers nothing until it is learned again.
    """
    with _existing(store) as (methods, library):
        found = methods.list(tenant, status=None if all else "active")
        rows = [_brief(method, library, tenant) for method in found]
    if as_json:
        write_document({"methods": rows})
        return
    write_table(
        ["id", "state", "grade", "model", "problems", "phrasings"],
        [
            [
                row["id"],
                row["state"],
                row["grade"],
                row["model"],
                str(row["problems"]),
                one_line(" | ".join(row["phrasings"]), 100),
            ]
            for row in rows
        ],
        right=("problems",),
    )
    write_line(f"tenant {printable(tenant)}: {counted(len(rows), 'method')}")


def show_command(
    id: MethodId,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Show a method: programs, phrasings, history."""
    with _existing(store) as (methods, library):
        method = _own(methods, id, tenant)
        events = methods.audit(id)
        whole = {
            **_brief(method, library, tenant),
            "programs": list(method.programs),
            "types": list(method.types),
            "answers": method.form.kind,
            "checker": None if method.checker is None else method.checker.as_json(),
            "cost": dict(method.cost),
            "detail": dict(method.detail),
            "evidence": [_evidence(one) for one in method.evidence],
            "audit": [asdict(event) for event in events],
        }
    if as_json:
        write_document(whole)
        return
    _show(whole, events)


def _brief(method: Method, library: Library | None, tenant: str) -> dict[str, Any]:
    from kvgraft.library.methods.trust import standing
    from kvgraft.library.methods.writing import NAMES

    stands, why = standing(method, library, tenant)
    state = method.status if method.status != "active" or stands else "fallen"
    return {
        "id": method.id,
        "state": state,
        "why": method.revoke_reason or why,
        "created_at": method.created_at,
        "revoked_at": method.revoked_at,
        "tenant": method.tenant,
        "model": method.model,
        "grade": method.grade if method.checker is None else f"by {method.checker.spec}",
        "problems": sum(len(one.instances) for one in method.evidence),
        "phrasings": list(dict.fromkeys(one.skeleton.named(NAMES) for one in method.evidence)),
    }


def _evidence(one: Evidence) -> dict[str, Any]:
    from kvgraft.library.methods.writing import NAMES

    return {
        "phrasing": one.skeleton.named(NAMES),
        "bindings": [list(order) for order in one.bindings],
        "domain": one.domain.as_json(),
        "instances": [asdict(instance) for instance in one.instances],
        "deposits": list(one.deposits),
        "created_at": one.created_at,
    }


def _show(whole: dict[str, Any], events: tuple[MethodEvent, ...]) -> None:
    names = ("id", "state", "why", "created_at", "tenant", "model", "grade", "problems", "answers")
    write_facts([(name.replace("_", " "), str(whole[name])) for name in names if whole[name]])
    for title, texts in (("phrasings", whole["phrasings"]), ("programs", whole["programs"])):
        write_line(f"\n--- {title} ---")
        for text in texts:
            write_line(printable(text))
    write_line("\n--- history ---")
    for event in events:
        detail = ", ".join(f"{name} {value}" for name, value in event.detail.items())
        write_line(f"{event.at}  {event.event}  {printable(detail)}")


# --- ask ------------------------------------------------------------------------------------------


def ask_command(
    text: ProblemText = None,
    file: File = None,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Answer a problem by a method, without a model.

    Status 1 where none answers, with the reason: the text is not exactly a phrasing that was
    learned, its values are outside of what was verified, programs disagree, or what the method was
    learned from does not stand any more.
    """
    from kvgraft.library.methods.ask import Abstained, ask_method

    problem = given_problem(text, file, None, None)
    with _existing(store) as (methods, library):
        said = ask_method(methods, library, problem.text, tenant=tenant)
    document = _said(said)
    if isinstance(said, Abstained):
        failed = CheckFailed(
            f"no method answers: {said.reason.replace('_', ' ')}",
            where=one_line(problem.text, 60),
            hint=said.detail or "learn one ('kvgraft method learn'), or 'kvgraft ask'",
        )
        raise Stopped(failed, document)
    if as_json:
        write_document(document)
        return
    write_line(printable(said.answer))
    write_line()
    values = ", ".join(f"{name} = {value}" for name, value in said.parameters.items())
    write_facts(
        [
            ("grade", said.grade),
            ("by", f"{counted(said.programs, 'program')} of method {', '.join(said.methods)}"),
            ("read", values),
            ("cost", f"0 tokens, {duration(said.cost.seconds)}"),
        ]
    )


def _said(said: MethodAnswer | Abstained) -> dict[str, Any]:
    names = ("answer", "grade", "methods", "parameters", "programs", "reason", "detail")
    found = {name: getattr(said, name, None) for name in names}
    return {"answered": found["answer"] is not None, **found, "cost": said.cost.as_dict()}


# --- revoke ---------------------------------------------------------------------------------------


def revoke_command(
    id: MethodId,
    reason: Annotated[
        str, typer.Option("--reason", metavar="WHY", help="Kept in the method's history.")
    ],
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Revoke a method for good.

    It answers nothing again, in any process. The deposits that it was learned from stay.
    """
    with _existing(store, read_only=False) as (methods, _):
        with suppress(StoreError):  # damaged: nothing says whose it is; revoking is the cure
            _own(methods, id, tenant)
        revoked = methods.revoke(id, reason)
    if as_json:
        write_document({"revoked": [id] if revoked else []})
    elif revoked:
        write_line(f"revoked {id}")
    else:
        write_line(f"{id} was revoked before; its first reason stays")


# --- what is there --------------------------------------------------------------------------------


@contextmanager
def _existing(
    store: Path | None, *, read_only: bool = True
) -> Iterator[tuple[Methods, Library | None]]:
    """The methods of a folder that has some, and its library.

    Raises:
        StoreError: there are none.
    """
    from kvgraft.library.methods.records import METHODS_NAME, Methods

    folder = store_folder(store)
    path = folder / METHODS_NAME
    if not path.exists():
        raise StoreError(
            "there are no methods yet", where=str(folder), hint="'kvgraft method learn' makes some"
        )
    with (
        Methods(folder / METHODS_NAME, read_only=read_only) as methods,
        library_in(folder) as library,
    ):
        yield methods, library


@contextmanager
def library_in(folder: Path) -> Iterator[Library | None]:
    """The library of a folder, to be read; None where there is none."""
    from kvgraft.api import LIBRARY_NAME

    if not (folder / LIBRARY_NAME).exists():
        yield None
        return
    with existing_library(folder, read_only=True) as library:
        yield library


def _own(methods: Methods, id: str, tenant: str) -> Method:
    """The method, if it is the tenant's: another's is not found, as everywhere."""
    method = methods.get(id)
    if method.tenant != tenant:
        raise RecordNotFound(
            f"tenant {tenant!r} has no such method", where=id, hint="see 'kvgraft method ls'"
        )
    return method
