"""Follow-ups: a question behind a deposit ("explain step 2", "and for n = 12?").

The model goes on in the state of having read and worked the problem, which a client that keeps
only the visible answer would have to send and derive again. The conversation is rendered and
tokenised as a whole and computed on the plan, like any prompt. The plan is cut where the deposit's
state ends, since the request names the deposit; so that state is grafted to its last token, and
what stands behind it is computed. What was decoded is never continued (invariant I1), so a
follow-up has the same logits as one whose whole text is sent to a context without a store and
planned alike; `compare` shows that, and what each of them costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgraft.energy import Measure
from kvgraft.engines.base import Message
from kvgraft.errors import (
    InputError,
    LimitExceeded,
    RecordNotFound,
    UsageError,
)
from kvgraft.library.answer import (
    FRESH,
    REPLAYED,
    Answer,
    below,
    check_judge,
    check_minimum,
    fresh_answer,
    judged,
    refuse_below,
)
from kvgraft.library.ask import Request, account, from_library, kept
from kvgraft.library.attempts import messages_prompt
from kvgraft.library.deposit import Deposit, check_trusted
from kvgraft.library.problem import Problem
from kvgraft.library.transfer import cuts_behind, worked
from kvgraft.library.verify.base import Verifier
from kvgraft.library.workspace import Workspace
from kvgraft.limits import MAX_FOLLOW_UPS
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt, history_ids, shared_prefix


@dataclass(frozen=True)
class Comparison:
    """One question, asked behind the grafted state and, as text alone, in a context without a
    store. `same_logits`: every logit that chose a token had the same bits in both."""

    continued: Cost
    resent: Cost
    same_logits: bool


@dataclass(frozen=True)
class FollowUp:
    """The answer to a question behind the deposit `parent`. `history_tokens`: what stands before
    the question; `compared` is None where that was not asked for, or nothing was continued."""

    parent: str
    history_tokens: int
    answer: Answer
    compared: Comparison | None = None


def conversation(workspace: Workspace, deposit_id: str) -> list[Message]:
    """The finished turns up to a deposit, those that it follows up first, with the system text.

    Raises:
        RecordNotFound: the tenant has no such deposit.
        DepositRevoked, DepositExpired: it, or one that it follows up.
        LimitExceeded: more than `limits.MAX_FOLLOW_UPS` follow each other up.
        StoreError: a record is damaged.
    """
    chain = _chain(workspace, deposit_id)
    system = chain[0].system
    turns = [Message("system", system)] if system is not None else []
    for deposit in reversed(chain):
        turns += worked(workspace.engine.tokenizer, deposit)
    return turns


def _chain(workspace: Workspace, deposit_id: str) -> list[Deposit]:
    """The deposit, and those that it follows up, the newest first."""
    chain: list[Deposit] = []
    id: str | None = deposit_id
    while id is not None:
        deposit = workspace.library.get(id)
        if deposit.tenant != workspace.tenant:
            raise RecordNotFound("the tenant has no such deposit", where=id)
        chain.append(check_trusted(deposit))
        if len(chain) > MAX_FOLLOW_UPS:
            raise LimitExceeded(f"more than {MAX_FOLLOW_UPS} follow each other up", where=id)
        id = deposit.parent
    return chain


def follow_up(
    workspace: Workspace,
    deposit_id: str,
    question: Problem,
    *,
    verifier: Verifier | None = None,
    max_new_tokens: int = 256,
    minimum: str = "any",
    keep: bool = False,
    compare: bool = False,
) -> FollowUp:
    """Ask `question` behind a deposit. The same question behind the same deposit, if an answer to
    it was kept, is replayed; else an attempt is made, which `verifier` judges.

    `minimum` and `keep` are as for `ask`; what is kept names its parent, and is revoked with it.
    `compare`: the attempt is made a second time, from text alone.

    Raises:
        RecordNotFound, DepositRevoked, DepositExpired, LimitExceeded, StoreError: as
            `conversation`.
        UsageError: a system text of its own, which the conversation has already; else as `ask`.
        InputError, ContextTooLong, BelowMinimum: as `ask`.
    """
    check_minimum(minimum)
    check_judge(verifier)
    if not question.text.strip():
        raise InputError("the question is empty")
    if question.system is not None:
        raise UsageError("a follow-up is asked under its deposit's system text")
    if keep and verifier is None:
        raise UsageError("what is kept was passed by a verifier")
    made, compared = None, None
    with Measure(workspace.meter) as measured:
        request, history = _request(workspace, deposit_id, question)
        found = from_library(workspace, request)
        if found is None and (minimum == "any" or (verifier and minimum != REPLAYED)):
            attempt = fresh_answer(workspace, request.prompt, max_new_tokens)
            made = account(request, judged(attempt, request.problem, verifier))
    answer = found or (made.answer if made else None)
    if answer is None:
        raise below(minimum, FRESH, "none", request.reasons, measured.into(request.spent))
    answer = refuse_below(minimum, replace(answer, cost=measured.into(answer.cost)))
    if made and compare:
        compared = _compare(workspace, request.prompt, max_new_tokens, answer)
    if keep and made and made.passed and verifier:
        answer = kept(workspace, request, replace(made, answer=answer), verifier)
    return FollowUp(deposit_id, history, answer, compared)


def _request(workspace: Workspace, deposit_id: str, question: Problem) -> tuple[Request, int]:
    """The request, and how many tokens of its prompt are the finished turns'."""
    parent = workspace.library.get(deposit_id)
    turns = conversation(workspace, deposit_id)
    prompt = posed_behind(workspace, parent, turns, question.text)
    problem = replace(question, system=parent.system)
    plain = workspace.space(parent.system).identity(question.text)
    identity = replace(plain, parent=deposit_id)
    reasons = []
    same = shared_prefix(parent.token_ids, prompt.ids)
    if same < len(parent.token_ids):
        reasons.append(
            f"rewritten: the template renders the deposit anew after token {same}"
            f" of {len(parent.token_ids)}"
        )
    request = Request(problem, prompt, identity, reasons)
    return request, len(history_ids(workspace.engine.tokenizer, turns))


def posed_behind(
    workspace: Workspace, parent: Deposit, turns: list[Message], question: str
) -> Prompt:
    """The prompt that asks `question` behind `parent`, whose `conversation` is `turns`.

    Raises:
        InputError: the chat template refuses the turns.
    """
    tokenizer = workspace.engine.tokenizer
    prompt = messages_prompt(tokenizer, [*turns, Message("user", question)])
    return replace(prompt, cuts=cuts_behind(parent, prompt.ids))


def _compare(
    workspace: Workspace, prompt: Prompt, max_new_tokens: int, answer: Answer
) -> Comparison:
    with Measure(workspace.meter) as measured:
        resent = fresh_answer(workspace, prompt, max_new_tokens, store=False)
    same = resent.logits_sha256 == answer.logits_sha256
    return Comparison(answer.cost, measured.into(resent.cost), same)
