"""States made again: for another engine, another release of one, or another model; or lost ones.

What a library keeps is text, so nothing that was verified depends on an engine. The problem is
posed to the engine at hand as its own template renders it, the kept solution is appended, and the
state is captured and replayed like that of any deposit. What replays is a deposit of its own, a
copy, which names its origin and is revoked with it; the origin stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from kvgraft.breakeven import Load
from kvgraft.energy import Measure
from kvgraft.errors import KvgraftError, StoreError, UnsupportedContent
from kvgraft.library.address import RequestIdentity, address
from kvgraft.library.deposit import (
    ACTIVE,
    REPLAYS,
    TEXT_ONLY,
    Deposit,
    NewDeposit,
    with_cuts,
)
from kvgraft.library.followup import conversation, posed_behind
from kvgraft.library.replay import replay, reproduces, with_replay
from kvgraft.library.restate import restatement, said, same_answer
from kvgraft.library.reverify import Verifiers
from kvgraft.library.verify.base import Verdict, Verifier, summary
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt, problem_prompt

KNOWN, FAILED = "known", "failed"


@dataclass(frozen=True)
class Rebuilt:
    """What became of one deposit: `replays` or `text_only` (now, for this engine, as the deposit
    `made`), `known` (there was nothing to do), or `failed`, and why."""

    id: str
    problem: str
    outcome: str
    made: str | None
    reason: str = ""


def rebuild(workspace: Workspace, ids: Iterable[str], verifiers: Verifiers) -> Iterator[Rebuilt]:
    """Make the states of deposits again, for the workspace's engine, one by one; each is durable
    before the next. Done again, what is there is left alone. `Library.active_ids` has all of them.

    Raises:
        RecordNotFound: there is no such deposit.
        StoreError: library or store cannot be written.
    """
    for id in ids:
        try:
            deposit = workspace.library.get(id)
        except StoreError as error:
            yield Rebuilt(id, "", FAILED, None, error.what)
            continue
        try:
            made = _rebuilt(workspace, deposit, verifiers)
        except StoreError:
            raise
        except KvgraftError as error:
            made = Rebuilt(id, deposit.problem, FAILED, None, str(error))
        if made.outcome != KNOWN:
            workspace.library.record_rebuild(
                id,
                {
                    "outcome": made.outcome,
                    "made": made.made,
                    "reason": made.reason,
                    "fingerprint": workspace.engine.fingerprint.hex,
                },
            )
        yield made


def _rebuilt(workspace: Workspace, deposit: Deposit, verifiers: Verifiers) -> Rebuilt:
    library, fingerprint = workspace.library, workspace.engine.fingerprint.hex
    done = partial(Rebuilt, deposit.id, deposit.problem)
    if deposit.tenant != workspace.tenant or deposit.status != ACTIVE:
        return done(FAILED, None, f"it is {deposit.status}, of tenant {deposit.tenant}")
    if deposit.fingerprint == fingerprint:
        return _again(workspace, deposit)
    identity = _identity_here(workspace, deposit)
    held = library.holder(address(identity), identity.tenant, fingerprint)
    if held is not None:
        return done(KNOWN, held)
    with Measure(workspace.meter) as measured:
        judge = partial(_judge, deposit, _verifier(deposit, verifiers))
        copy = _copy(workspace, deposit, identity)
        copy = with_replay(workspace, copy, judge, first_cue=deposit.cue)
    # Of its tokens no account is kept: they are not known, which is not 0.
    cost = measured.into(Cost(prefill_tokens=None, reused_tokens=None, decode_tokens=None))
    kept = library.deposit(replace(copy, cost=cost.as_dict()))
    return done(kept.replay, kept.id, kept.replay_reason)


def _again(workspace: Workspace, deposit: Deposit) -> Rebuilt:
    """A deposit that was made for this very engine: its state, if it is not in the store."""
    done = partial(Rebuilt, deposit.id, deposit.problem)
    key = deposit.artifact
    if deposit.replay == TEXT_ONLY or key is None or workspace.chunks.find(bytes.fromhex(key)):
        return done(KNOWN, deposit.id)
    replay(workspace, deposit.token_ids, deposit.cuts, load=Load.ALWAYS)
    result = replay(workspace, deposit.token_ids, deposit.cuts, load=Load.ALWAYS)
    why = reproduces(deposit, deposit.fingerprint, result)
    if why is None and not result.from_disk:
        why = result.report.capture_error or "; ".join(result.report.misses)
    return done(REPLAYS if why is None else FAILED, deposit.id, why or "")


# --- the copy -----------------------------------------------------------------------------------


def _copy(workspace: Workspace, deposit: Deposit, identity: RequestIdentity) -> NewDeposit:
    """The deposit's solution behind its problem as this engine's template renders it, without a
    state yet.

    Raises:
        UnsupportedContent: the request had tools or images, which are not kept.
        InputError: the template refuses it.
        DepositRevoked, DepositExpired: what it follows up.
    """
    prompt = _prompt(workspace, deposit, identity)
    made_as = {
        "rebuilt_from": deposit.id,
        "fingerprint": deposit.fingerprint,
        "model": deposit.model,
        "source": deposit.source,
        "provenance": dict(deposit.provenance),
    }
    return NewDeposit(
        identity=identity,
        model=workspace.engine.model,
        fingerprint=workspace.engine.fingerprint.hex,
        prompt=prompt.text,
        trace=deposit.trace,
        cue="",
        token_ids=prompt.ids,
        answer=deposit.answer,
        answer_ids=(),
        verdict=deposit.verdict,
        cost={},
        grounds=deposit.grounds,
        provenance=with_cuts(made_as, prompt.cuts),
        source="rebuild",
        origin=deposit.origin or deposit.id,
        expires_at=deposit.expires_at,
        verified_at=deposit.verified_at,
        finished=True,
    )


def _prompt(workspace: Workspace, deposit: Deposit, identity: RequestIdentity) -> Prompt:
    if identity.tools_digest or identity.images_digest:
        raise UnsupportedContent("the request had tools or images, which are not kept")
    if identity.parent is None:
        return problem_prompt(workspace.engine.tokenizer, deposit.problem, deposit.system)
    turns = conversation(workspace, identity.parent)
    parent = workspace.library.get(identity.parent)
    return posed_behind(workspace, parent, turns, deposit.problem)


def _identity_here(workspace: Workspace, deposit: Deposit) -> RequestIdentity:
    """The deposit's request as this engine's tokenizer and template have it."""
    tokenizer = workspace.engine.tokenizer
    parent = None if deposit.parent is None else _parent_here(workspace, deposit.parent)
    return replace(
        deposit.identity,
        template_digest=tokenizer.template_digest,
        tokenizer_digest=tokenizer.digest,
        parent=parent,
    )


def _parent_here(workspace: Workspace, id: str) -> str:
    """The copy of deposit `id` for this engine, whose answer a client would follow up; else `id`
    itself. A solution of this engine's own in its place is another one, and is not meant."""
    library, fingerprint = workspace.library, workspace.engine.fingerprint.hex
    parent = library.get(id)
    if parent.fingerprint == fingerprint:
        return id
    identity = _identity_here(workspace, parent)
    held = library.holder(address(identity), identity.tenant, fingerprint)
    same = held is not None and library.get(held).origin == (parent.origin or parent.id)
    return held if held is not None and same else id


# --- the answer ---------------------------------------------------------------------------------


def _verifier(deposit: Deposit, verifiers: Verifiers) -> Verifier | None:
    """The verifier that judged the deposit, where it can be had today."""
    try:
        return verifiers.get(deposit.grounds.spec) if deposit.grounds else None
    except KvgraftError:
        return None


def _judge(deposit: Deposit, verifier: Verifier | None, text: str) -> Verdict:
    """The verdict on what the model says from the new state: the deposit's own, where the answer is
    the deposit's. Where it is written in another way, the verifier has to pass that too."""
    found = extract(said(text))
    answer = found.answer if found is not None else None
    same = answer is not None and same_answer(answer, deposit.answer)
    if same and answer != deposit.answer and verifier is not None and deposit.grounds is not None:
        same = restatement(verifier, deposit.grounds.case, deposit.verdict, text).passed
    return replace(
        deposit.verdict,
        passed=same,
        answer=answer,
        evidence={
            "method": "same answer as the deposit",
            "gold": summary(deposit.answer),
            "given": answer if answer is None else summary(answer),
        },
    )
