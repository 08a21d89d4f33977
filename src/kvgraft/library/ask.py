"""Ask: an exact address is replayed; anything else is an honest new attempt, and says so."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

from kvgraft.energy import Measure
from kvgraft.errors import ContextTooLong, InputError, StoreError, UnsupportedContent, UsageError
from kvgraft.library.address import RequestIdentity, address
from kvgraft.library.answer import (
    FRESH,
    RECORDED,
    REPLAYED,
    TRANSFERRED,
    Answer,
    Judged,
    below,
    check_judge,
    check_minimum,
    decoding_flops,
    fresh_answer,
    judged,
    refuse_below,
)
from kvgraft.library.deposit import TEXT_ONLY, Deposit
from kvgraft.library.problem import Problem
from kvgraft.library.replay import make_deposit, rendered_otherwise, replay, reproduces
from kvgraft.library.restate import same_answer
from kvgraft.library.transfer import Transfer, transferred
from kvgraft.library.verify.base import Verifier
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt, problem_prompt

__all__ = ["FRESH", "RECORDED", "REPLAYED", "TRANSFERRED", "Answer", "Terms", "Transfer", "ask"]


# Verifiers of a key or a vote; others pass whatever fulfils their condition.
_OF_ONE_ANSWER = frozenset({"math", "exact", "consensus"})


@dataclass(frozen=True)
class Terms:
    """What else of a request can change its answer. All of it is part of the request's address, so
    an answer that was stored for other terms is not found. `tools` and `images` are refused: no
    engine here takes them, and an answer that leaves them out is an answer to something else.

    Raises:
        UnsupportedContent: `tools` or `images`.
        InputError: an empty stop string, which would end every text before it begins.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: str | None = None
    tools: tuple[bytes, ...] = ()
    images: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tools", "images"):
            if getattr(self, name):
                raise UnsupportedContent(
                    f"the request has {name}, and this model takes text alone",
                    hint="leave them out, or put what they say into the problem's text",
                )
        if not all(self.stop):
            raise InputError("a stop string is empty", hint="leave it out")

    def identity(self, plain: RequestIdentity) -> RequestIdentity:
        """`plain`, the identity of the same request without terms, with these."""
        return replace(
            plain, max_tokens=self.max_tokens, stop=self.stop, tool_choice=self.tool_choice
        )


@dataclass
class Request:
    """A request on its way to an answer: what is asked, how it is rendered, where a deposit of it
    would be; and, so far, why that is not replayed (`reasons`), whether one of this fingerprint is
    there that does not serve (`stale`), and what trying it took (`spent`)."""

    problem: Problem
    prompt: Prompt
    identity: RequestIdentity
    reasons: list[str] = field(default_factory=list)
    stale: bool = False
    spent: Cost = field(default_factory=Cost.nothing)


def ask(
    workspace: Workspace,
    problem: Problem,
    *,
    verifier: Verifier | None = None,
    max_new_tokens: int = 256,
    minimum: str = "any",
    terms: Terms | None = None,
    transfer: Transfer | None = None,
    keep: bool = False,
) -> Answer:
    """Answer a problem: from the deposit at its exact address, else by a new attempt, which
    `verifier` judges; with `transfer`, by attempts with related solutions in context.

    `minimum` is one of `answer.MINIMUMS`; no attempt is made that cannot reach it. `keep`: a new
    answer that the verifier passed is deposited.

    Raises:
        InputError, ContextTooLong: the problem cannot be posed to this model.
        BelowMinimum: there is no answer that is good enough.
        UsageError: no such minimum; `keep` without a verifier, or with terms of its own; a verifier
            that compares attempts, where one is made.
        StoreError: with `keep`, the library cannot be written.
    """
    check_minimum(minimum)
    terms = terms or Terms()
    if keep and (verifier is None or terms != Terms()):
        raise UsageError(
            "what is kept was passed by a verifier, for a request without terms of its own"
        )
    with Measure(workspace.meter) as measured:
        request = _request(workspace, problem, terms)
        found = from_library(workspace, request)
        made = None
        if found is None and (minimum == "any" or (verifier and minimum != REPLAYED)):
            tokens = min(max_new_tokens, terms.max_tokens or max_new_tokens)
            made = _attempt(workspace, request, verifier, tokens, terms.stop, transfer)
    answer = found or (made.answer if made else None)
    if answer is None:
        raise below(minimum, FRESH, "none", request.reasons, measured.into(request.spent))
    answer = refuse_below(minimum, replace(answer, cost=measured.into(answer.cost)))
    if keep and made and made.passed and verifier:
        return kept(workspace, request, replace(made, answer=answer), verifier)
    return answer


def _request(workspace: Workspace, problem: Problem, terms: Terms) -> Request:
    prompt = problem_prompt(workspace.engine.tokenizer, problem.text, problem.system)
    identity = terms.identity(workspace.space(problem.system).identity(problem.text))
    return Request(problem, prompt, identity)


def _attempt(
    workspace: Workspace,
    request: Request,
    verifier: Verifier | None,
    max_new_tokens: int,
    stop: tuple[str, ...],
    transfer: Transfer | None,
) -> Judged:
    made = None
    if transfer is not None:
        made = transferred(
            workspace, request.problem, verifier, transfer, max_new_tokens, stop, request.reasons
        )
    if made is None:
        check_judge(verifier)
        attempt = fresh_answer(workspace, request.prompt, max_new_tokens, stop=stop)
        made = judged(attempt, request.problem, verifier)
    return account(request, made)


def account(request: Request, made: Judged) -> Judged:
    """`made` with what the request has to say of it: why nothing was replayed, and what that
    took."""
    answer = made.answer
    answer = replace(answer, reasons=tuple(request.reasons), cost=request.spent + answer.cost)
    return replace(made, answer=answer)


def kept(workspace: Workspace, request: Request, made: Judged, verifier: Verifier) -> Answer:
    """The answer, deposited, in the place of a deposit that does not serve.

    Raises:
        StoreError: the library cannot be written.
    """
    answer, verdict = made.answer, made.verdict
    assert verdict is not None  # it passed
    deposit = make_deposit(
        workspace,
        request.problem,
        request.prompt,
        answer.text,
        verdict,
        verifier,
        answer.cost.as_dict(),
        case=made.case,
        identity=request.identity,
        source="transfer" if answer.context else "ask",
        provenance={
            "model": workspace.engine.model,
            "how": answer.how,
            "context": list(answer.context),
        },
        supersede=request.stale,
    )
    return replace(answer, kept=deposit.id)


# --- from the library -----------------------------------------------------------------------------


def from_library(workspace: Workspace, request: Request) -> Answer | None:
    """The answer of the deposit at the request's exact address, or None with the reason noted."""
    fingerprint = workspace.engine.fingerprint.hex
    reasons = request.reasons
    try:
        where = address(request.identity)
        deposit = workspace.library.find(where, workspace.tenant, fingerprint)
    except StoreError as error:  # a damaged record is a miss, never an answer
        reasons.append(f"damaged: {error}")
        request.stale = True
        return None
    if deposit is None:
        reasons.append("no_deposit: nothing at this exact address")
        return None
    if difference := rendered_otherwise(deposit, request.prompt):
        reasons.append(f"rendering: {difference}")
        answer = None
    else:
        answer = _from_deposit(workspace, deposit, fingerprint, reasons, request.spent)
    request.stale = answer is None and deposit.fingerprint == fingerprint
    return answer


def _states_its_answer(deposit: Deposit) -> bool:
    """Whether a record that keeps text only agrees with itself: nothing else speaks for it, as a
    replay does for others. Asked where the verifier passes one answer alone, found in the text."""
    if deposit.verdict.verifier not in _OF_ONE_ANSWER:
        return True
    found = extract(deposit.trace)
    stated = deposit.trace.strip() if found is None else found.answer
    return same_answer(stated, deposit.answer) or same_answer(deposit.trace, deposit.answer)


def _from_deposit(
    workspace: Workspace,
    deposit: Deposit,
    fingerprint: str,
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
        if not _states_its_answer(deposit):
            reasons.append("not_reproduced: the record's solution gives another answer")
            return None
        return Answer(
            how=RECORDED,
            text=deposit.answer,
            answer=deposit.answer,
            grade=deposit.verdict.grade,
            exact=None,
            cost=spent,
            deposit_id=deposit.id,
            provenance=provenance,
            reasons=(f"text_only: {deposit.replay_reason}",),
        )
    if deposit.fingerprint != fingerprint:
        reasons.append("fingerprint: made elsewhere, so the state is computed again")
    try:
        result = replay(workspace, deposit.token_ids, deposit.cuts)
    except ContextTooLong as error:
        reasons.append(f"no_room: {error}")
        return None
    spent.prefill_tokens = result.report.computed_tokens
    spent.reused_tokens = result.report.reused_tokens
    spent.decode_tokens = result.decoded.steps
    spent.model_flops = decoding_flops(workspace, result.report, result.decoded)
    if (difference := reproduces(deposit, fingerprint, result)) is not None:
        reasons.append(f"not_reproduced: {difference}")
        with suppress(StoreError):  # a library that is not written to now says it another time
            workspace.library.record_replay_failed(deposit.id, difference, fingerprint)
        return None
    if not workspace.library.is_active(deposit.id):  # seconds may have gone by
        reasons.append("no_deposit: it was revoked, or expired, while it was replayed")
        return None
    return Answer(
        how=REPLAYED,
        text=result.text,
        answer=deposit.answer,
        grade=deposit.verdict.grade,
        exact=True if deposit.fingerprint == fingerprint else None,
        cost=spent,
        deposit_id=deposit.id,
        logits_sha256=result.decoded.logits_sha256,
        provenance=provenance,
        reasons=(*reasons, *result.report.misses),
        reuse=result.report,
    )
