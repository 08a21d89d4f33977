"""`kvgraft library reverify` and `rebuild`: verdicts given again, states made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.library import OneId, check_own
from kvgraft.cli.option_groups import EngineOptions, MemoryOptions, grouped
from kvgraft.cli.output import counted, one_line, write_document, write_line
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import existing_library, opened
from kvgraft.errors import CheckFailed, KvgraftError, UsageError

if TYPE_CHECKING:
    from kvgraft.library.rebuild import Rebuilt
    from kvgraft.library.reverify import Reverified

Due = Annotated[
    float | None,
    typer.Option(
        "--due",
        min=0,
        metavar="DAYS",
        help="Only those that no verdict was given on for so many days.",
        show_default=False,
    ),
]
PassedBy = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="V",
        help="Only those that this verifier passed, as 'solve' takes it. Verdicts of a command "
        "are given again only where it is named here.",
        show_default=False,
    ),
]

# --- reverify -----------------------------------------------------------------------------------


def reverify_command(
    due: Due = None,
    id: OneId = None,
    verifier: PassedBy = None,
    revoke_failed: Annotated[
        bool, typer.Option("--revoke-failed", help="Revoke what does not pass any more.")
    ] = False,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Give the verdicts of deposits again, without a model.

    Each active deposit's verifier sees again what it saw when the deposit was made. Where the
    verifier has another version today, the newer one judges. What cannot be judged stays. Status 1
    when something does not pass and was not revoked. After Ctrl-C, --due goes on with the rest.
    """
    from kvgraft.library.reverify import Verifiers, reverify

    if id is not None and due is not None:
        raise UsageError("--id names one deposit, due or not", hint="give one of them")
    spec = None if verifier is None else _spec_of(verifier)
    seen: list[Reverified] = []
    with (
        existing_library(store, read_only=False) as library,
        Verifiers([spec] if spec is not None else []) as verifiers,
        Watch("judging again") as watch,
    ):
        if id is not None:
            check_own(library, id, tenant)
            ids, total = iter([id]), 1
        else:
            ids = library.due(due, tenant=tenant, verifier_spec=spec)
            total = library.count_due(due, tenant=tenant, verifier_spec=spec)
        with _stoppable(
            lambda: _reverified(seen), "the rest has its turn with --due, or again from the start"
        ):
            for one in reverify(library, ids, verifiers, revoke_failed=revoke_failed):
                seen.append(one)
                watch.steps("deposits", len(seen), total)
                if not as_json and one.outcome != "passed":
                    with watch.aside():
                        _write_outcome(one.id, one.outcome, one.reason)
    document = _reverified(seen)
    totals = document["totals"]
    if not as_json:
        write_line(
            f"{counted(len(seen), 'deposit')}: {totals['passed']} passed, "
            f"{totals['failed']} failed, {totals['not_judged']} not judged; "
            f"{totals['revoked']} revoked"
        )
    if bad := sum(one.outcome == "failed" and not one.revoked for one in seen):
        what = f"{counted(bad, 'deposit')} did not pass again"
        hint = "look at them with 'kvgraft library show', or revoke them: --revoke-failed"
        raise Stopped(CheckFailed(what, hint=hint), document)
    if as_json:
        write_document(document)


def _spec_of(verifier: str) -> str:
    """As deposits name it."""
    from kvgraft.library.verify.specs import make_verifier

    made = make_verifier(verifier)
    try:
        return made.spec
    finally:
        made.close()


def _reverified(seen: Sequence[Reverified]) -> dict[str, Any]:
    counts = Counter(one.outcome for one in seen)
    return {
        "deposits": [asdict(one) for one in seen],
        "totals": {
            **{name: counts[name] for name in ("passed", "failed", "not_judged")},
            "revoked": sum(len(one.revoked) for one in seen),
        },
    }


# --- rebuild ------------------------------------------------------------------------------------


@grouped
def rebuild_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)],
    every: Annotated[bool, typer.Option("--all", help="All active deposits.")] = False,
    id: OneId = None,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    *,
    chosen: EngineOptions,
    as_json: options.AsJson = False,
) -> None:
    """Make the states of deposits again, for another engine or model.

    Each kept solution is put behind its problem as MODEL renders it, captured, and replayed from
    disk. Where MODEL says the deposit's answer, a copy of the deposit is kept for it; else a copy
    as text only, with the reason. The deposits themselves stay. What is there already is left
    alone, so that the same command goes on after Ctrl-C.
    """
    if every == (id is not None):
        raise UsageError("give one of --all and --id")
    memory_options = MemoryOptions(store, tenant, options.Load.always, chosen)
    seen: list[Rebuilt] = []
    with existing_library(store, read_only=True) as library:
        if id is not None:
            check_own(library, id, tenant)
        total = 1 if id is not None else library.count(tenant=tenant)
    with (
        _stoppable(lambda: _rebuilt(seen), "the same command goes on with the rest"),
        Watch(f"opening {model}") as watch,
    ):
        for one in _rebuilding(model, id, memory_options, watch):
            seen.append(one)
            watch.steps("deposits", len(seen), total)
            if not as_json and one.outcome != "known":
                with watch.aside():
                    _write_outcome(one.id, one.outcome, one.reason or f"as {one.made}")
    document = _rebuilt(seen)
    if as_json:
        write_document(document)
        return
    totals = document["totals"]
    write_line(
        f"{counted(len(seen), 'deposit')}: {totals['replays']} replay, {totals['text_only']} text "
        f"only, {totals['known']} known before, {totals['failed']} failed"
    )


def _rebuilding(
    model: str,
    id: str | None,
    memory_options: MemoryOptions,
    watch: Watch,
) -> Iterator[Rebuilt]:
    from kvgraft.library.rebuild import rebuild
    from kvgraft.library.reverify import Verifiers

    with opened(model, memory_options, watch) as memory, Verifiers() as verifiers:
        watch.restart("making states again")
        ids = memory.library.active_ids(memory_options.tenant) if id is None else iter([id])
        yield from rebuild(memory.workspace, ids, verifiers)


def _rebuilt(seen: Sequence[Rebuilt]) -> dict[str, Any]:
    counts = Counter(one.outcome for one in seen)
    return {
        "deposits": [asdict(one) for one in seen],
        "totals": {name: counts[name] for name in ("replays", "text_only", "known", "failed")},
    }


# --- what is printed ----------------------------------------------------------------------------


def _write_outcome(id: str, outcome: str, reason: str) -> None:
    write_line(f"{id}  {outcome.replace('_', ' ')}: {one_line(reason, 200)}")


@contextmanager
def _stoppable(document: Callable[[], Mapping[str, Any]], hint: str) -> Iterator[None]:
    """What ends a run early is told together with what was done until then."""
    try:
        yield
    except (KvgraftError, KeyboardInterrupt) as error:
        done = document()
        if not done["deposits"] and isinstance(error, KvgraftError):
            raise
        raise Stopped(error, done, f"{len(done['deposits'])} are done; {hint}") from error
