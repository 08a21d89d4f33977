"""Ask: an exact address is replayed; anything else is an honest fresh attempt, and says so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvgraft.decode import greedy
from kvgraft.errors import ContextTooLong, StoreError
from kvgraft.library.deposit import TEXT_ONLY, Deposit
from kvgraft.library.problem import Problem
from kvgraft.library.replay import rendered_otherwise, replay, reproduces
from kvgraft.library.verify.base import Verifier
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost, Stopwatch
from kvgraft.prompt import Prompt, problem_prompt
from kvgraft.reuse import Keep, ReuseReport, compute_prompt

REPLAYED, RECORDED, FRESH = "replayed", "recorded", "fresh"


@dataclass(frozen=True)
class Answer:
    """An answer and where it came from.

    `how`: replayed (decoded by the model from the grafted state, equal to the record), recorded
    (a verified deposit that keeps text only), or fresh. `grade` is the verdict's: proved, agreed
    or none. `exact`: the logits had the record's SHA-256 (None where that says nothing).
    `reasons` names why it was not replayed, or what had to be made again.
    """

    how: str
    text: str
    answer: str | None
    grade: str
    exact: bool | None
    cost: Cost
    deposit_id: str | None = None
    finished: bool = True
    logits_sha256: str | None = None
    provenance: dict[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    reuse: ReuseReport | None = None


def ask(
    workspace: Workspace,
    problem: Problem,
    *,
    verifier: Verifier | None = None,
    max_new_tokens: int = 256,
) -> Answer:
    """Answer a problem. `verifier` judges a fresh attempt, if one has to be made.

    Raises:
        InputError, ContextTooLong: the problem cannot be posed to this model.
    """
    watch = Stopwatch()
    prompt = problem_prompt(workspace.engine.tokenizer, problem.text, problem.system)
    address = workspace.space(problem.system).address(problem.text)
    fingerprint = workspace.engine.fingerprint.hex
    reasons: list[str] = []
    spent = Cost()  # on a replay that is not returned
    try:
        deposit = workspace.library.find(address, workspace.tenant, fingerprint)
        reasons += [] if deposit else ["no_deposit: nothing at this exact address"]
    except StoreError as error:  # a damaged record is a miss, never an answer
        deposit = None
        reasons.append(f"damaged: {error}")
    if deposit is not None and (difference := rendered_otherwise(deposit, prompt)):
        reasons.append(f"rendering: {difference}")
    elif deposit is not None:
        answer = _from_deposit(workspace, deposit, fingerprint, watch, reasons, spent)
        if answer is not None:
            return answer
    fresh = _fresh(workspace, problem, prompt, verifier, max_new_tokens, reasons)
    return replace(fresh, cost=replace(spent + fresh.cost, seconds=watch.seconds))


def _from_deposit(
    workspace: Workspace,
    deposit: Deposit,
    fingerprint: str,
    watch: Stopwatch,
    reasons: list[str],
    spent: Cost,
) -> Answer | None:
    """The deposit's answer, or None with the reason added, and what it took to `spent`."""
    provenance = {
        "model": deposit.model,
        "fingerprint": deposit.fingerprint,
        "verifier": deposit.verdict.verifier,
        "verifier_version": deposit.verdict.version,
        "source": deposit.source,
        "created_at": deposit.created_at,
    }
    if deposit.replay == TEXT_ONLY:
        return Answer(
            how=RECORDED,
            text=deposit.answer,
            answer=deposit.answer,
            grade=deposit.verdict.grade,
            exact=None,
            cost=Cost(seconds=watch.seconds),
            deposit_id=deposit.id,
            provenance=provenance,
            reasons=(f"text_only: {deposit.replay_reason}",),
        )
    if deposit.fingerprint != fingerprint:
        reasons.append("fingerprint: made elsewhere, so the state is computed again")
    try:
        result = replay(workspace, deposit.token_ids)
    except ContextTooLong as error:
        reasons.append(f"no_room: {error}")
        return None
    spent.prefill_tokens = result.report.computed_tokens
    spent.reused_tokens = result.report.reused_tokens
    spent.decode_tokens = result.decoded.steps
    if (difference := reproduces(deposit, fingerprint, result)) is not None:
        reasons.append(f"not_reproduced: {difference}")
        return None
    return Answer(
        how=REPLAYED,
        text=result.text,
        answer=deposit.answer,
        grade=deposit.verdict.grade,
        exact=True if deposit.fingerprint == fingerprint else None,
        cost=replace(spent, seconds=watch.seconds),
        deposit_id=deposit.id,
        logits_sha256=result.decoded.logits_sha256,
        provenance=provenance,
        reasons=(*reasons, *result.report.misses),
        reuse=result.report,
    )


def _fresh(
    workspace: Workspace,
    problem: Problem,
    prompt: Prompt,
    verifier: Verifier | None,
    max_new_tokens: int,
    reasons: list[str],
) -> Answer:
    """One greedy attempt; its grade is none unless a verifier passes it."""
    engine = workspace.engine
    computed = compute_prompt(
        engine,
        workspace.chunks,
        prompt.ids,
        salt=workspace.salt,
        keep=Keep.BLOCKS,
        load=workspace.load,
        room=max_new_tokens,
    )
    try:
        decoded = greedy(computed.context, max_new_tokens, engine.tokenizer.stop_ids)
    finally:
        computed.context.close()
    text = engine.tokenizer.decode(decoded.ids)
    found = extract(text)
    grade, answer = "none", found.answer if found else None
    provenance = {"model": engine.model, "fingerprint": engine.fingerprint.hex}
    if verifier is not None and decoded.finished:
        verdict = verifier.verify(problem.case(), text)
        grade = verdict.grade if verdict.passed else "none"
        answer = verdict.answer
        provenance |= {"verifier": verifier.name, "verifier_version": verifier.version}
    return Answer(
        how=FRESH,
        text=text,
        answer=answer,
        grade=grade,
        exact=None,
        cost=Cost(
            attempts=1,
            prefill_tokens=computed.report.computed_tokens,
            reused_tokens=computed.report.reused_tokens,
            decode_tokens=decoded.steps,
        ),
        finished=decoded.finished,
        logits_sha256=decoded.logits_sha256,
        provenance=provenance,
        reasons=tuple(reasons),
        reuse=computed.report,
    )
