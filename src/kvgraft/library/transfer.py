"""Transfer: related, verified solutions as context for a new attempt at another problem.

The context stands at its own position, at the beginning of the prompt, as finished turns of a chat:
a prompt like any other, planned, captured and grafted. Its plan is cut where the first deposit's
state ends and where the turns do: the first use of a deposit finds the state that was stored with
it, later ones find the turns as well, to their last token.

A solution in context is a suggestion and nothing more (invariant I6): a model may copy its answer.
What comes out is called transferred only where a verifier passed it, else it is a fresh attempt
without a grade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvgraft.decode import Sampling
from kvgraft.engines.base import Message, Tokenizer
from kvgraft.errors import InputError, LimitExceeded, StoreError, UsageError
from kvgraft.library import schema
from kvgraft.library.answer import (
    FRESH,
    TRANSFERRED,
    Answer,
    Judged,
    fresh_answer,
    judged,
    until,
)
from kvgraft.library.attempts import Attempt, attempt, check_attempts, messages_prompt
from kvgraft.library.deposit import Deposit
from kvgraft.library.problem import Problem
from kvgraft.library.records import Library
from kvgraft.library.related import MIN_SIMILARITY, related
from kvgraft.library.rows import json_object
from kvgraft.library.verify.base import Verifier
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.limits import LIBRARY_BUSY_SECONDS, MAX_TRANSFERRED_SOLUTIONS
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt, history_ids, shared_prefix

SINGLE, PAGE = "single", "page"
_TRANSFERS = "SELECT id, provenance FROM deposits WHERE source = 'transfer' ORDER BY id"


@dataclass(frozen=True)
class Transfer:
    """How related solutions become context.

    `position`: "single" puts one solution before an attempt, the most related first; "page" puts
    all of them before every attempt, in the order of their deposits' ids, so that problems with
    the same relatives have the same beginning. `attempts` at each prompt: a greedy one, then, where
    a verifier passed none, samples.

    Raises:
        UsageError: an unknown position, no solutions or attempts.
        LimitExceeded: more than `limits.MAX_TRANSFERRED_SOLUTIONS`.
    """

    position: str = SINGLE
    solutions: int = 3
    attempts: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    min_similarity: float = MIN_SIMILARITY

    def __post_init__(self) -> None:
        if self.position not in (SINGLE, PAGE):
            raise UsageError(f"there is no position {self.position!r}", hint=f"{SINGLE} or {PAGE}")
        if self.solutions < 1:
            raise UsageError("a transfer needs a solution")
        if self.solutions > MAX_TRANSFERRED_SOLUTIONS:
            raise LimitExceeded(f"more than {MAX_TRANSFERRED_SOLUTIONS} solutions in context")
        check_attempts(self.attempts, self.sampling, 1)


def worked(tokenizer: Tokenizer, deposit: Deposit) -> tuple[Message, Message]:
    """A deposit as two turns: its problem, and its solution with the answer as the model states it
    from its state. As text these turns begin as the deposited state's do."""
    solution = deposit.trace
    if deposit.cue and deposit.answer_ids:
        said = tokenizer.decode([*deposit.token_ids, *deposit.answer_ids])
        _, found, answer = said.rpartition(deposit.cue)
        lead = answer[: len(answer) - len(answer.lstrip())] if found else " "
        line = answer.strip().partition("\n")[0].strip() if found else deposit.answer
        solution += f"{deposit.cue}{lead}{line}"
    return Message("user", deposit.problem), Message("assistant", solution)


def cuts_behind(deposit: Deposit, ids: Sequence[int]) -> tuple[int, ...]:
    """Where the plan of a prompt that begins with `deposit`'s turns is cut, so that its state is
    reused to the last token: where that ends, and where it is cut itself; as far as both have the
    same ids."""
    ends = (len(deposit.token_ids),) if deposit.artifact is not None else ()
    same = shared_prefix(deposit.token_ids, ids)
    return tuple(cut for cut in (*deposit.cuts, *ends) if cut <= same)


def solutions_prompt(tokenizer: Tokenizer, problem: Problem, deposits: Sequence[Deposit]) -> Prompt:
    """The prompt that poses a problem behind finished turns with other solutions, cut where the
    first one's state ends and where the turns do.

    Raises:
        InputError: the chat template refuses the turns.
    """
    turns = [Message("system", problem.system)] if problem.system is not None else []
    for deposit in deposits:
        turns += worked(tokenizer, deposit)
    prompt = messages_prompt(tokenizer, [*turns, Message("user", problem.text)])
    if not deposits:
        return prompt
    history = min(len(history_ids(tokenizer, turns)), len(prompt.ids))
    return replace(prompt, cuts=(*cuts_behind(deposits[0], prompt.ids), history))


def context_of(deposit: Deposit) -> tuple[str, ...]:
    """The deposits that were in context when this one was made."""
    return tuple(deposit.provenance.get("context", ()))


def made_with(library: Library, *ids: str) -> tuple[str, ...]:
    """The deposits that were made with one of `ids` in context, or with one of those, and so on,
    the oldest first. They were verified on their own, so revoking what was in context does not
    revoke them; who revokes may want to look at them again.

    Raises:
        StoreError: the library cannot be read.
    """
    db = schema.open_database(library.path, read_only=True, busy_seconds=LIBRARY_BUSY_SECONDS)
    try:
        with schema.typed_errors(library.path):
            rows = db.execute(_TRANSFERS).fetchall()
    finally:
        db.close()
    made: list[str] = []
    seen = set(ids)
    for id, provenance in rows:  # ids rise: what was in context is older
        if not seen.isdisjoint(json_object(provenance).get("context", ())):
            seen.add(id)
            made.append(id)
    return tuple(made)


@dataclass(frozen=True)
class _Context:
    """A prompt with solutions before the problem."""

    deposits: tuple[str, ...]
    prompt: Prompt


def transferred(
    workspace: Workspace,
    problem: Problem,
    verifier: Verifier | None,
    how: Transfer,
    max_new_tokens: int,
    stop: Sequence[str],
    reasons: list[str],
) -> Judged | None:
    """Attempts with related solutions in context, until the verifier passes one: that one, or the
    first. None where there is nothing related, with the reason added to `reasons`.

    Without a verifier one attempt is made. A verifier that compares attempts compares those that
    were made with different solutions in context, since those made with the same may share its
    faults.

    Raises:
        VerifierError: the problem lacks what the verifier needs.
    """
    contexts = _contexts(workspace, problem, how, max_new_tokens, reasons)
    if not contexts:
        return None
    return _Trial(workspace, problem, verifier, how, max_new_tokens, stop).run(contexts)


def _contexts(
    workspace: Workspace,
    problem: Problem,
    how: Transfer,
    room: int,
    reasons: list[str],
) -> list[_Context]:
    try:
        found = related(
            workspace.library,
            workspace.tenant,
            problem.text,
            count=how.solutions,
            minimum=how.min_similarity,
        )
    except StoreError as error:
        reasons.append(f"no_related: {error}")
        return []
    if not found:
        reasons.append("no_related: no deposit's problem reads like this one")
        return []
    deposits = [one.deposit for one in found]
    if how.position == SINGLE:
        return [
            context
            for deposit in deposits
            if (context := _fitting(workspace, problem, [deposit], room, reasons))
        ]
    while deposits:  # the least related ones are left out until the page fits
        page = sorted(deposits, key=lambda deposit: deposit.id)
        if context := _fitting(workspace, problem, page, room, reasons):
            return [context]
        deposits.pop()
    return []


def _fitting(
    workspace: Workspace,
    problem: Problem,
    deposits: Sequence[Deposit],
    room: int,
    reasons: list[str],
) -> _Context | None:
    """The prompt with these solutions, if the model takes it."""
    ids = tuple(deposit.id for deposit in deposits)
    try:
        prompt = solutions_prompt(workspace.engine.tokenizer, problem, deposits)
    except InputError as error:
        reasons.append(f"no_context: {error}")
        return None
    if len(prompt.ids) + room > workspace.engine.context_tokens:
        reasons.append(f"no_context: {', '.join(ids)} and an attempt do not fit the context")
        return None
    return _Context(ids, prompt)


class _Trial:
    """Attempts at one problem, until one of them passes."""

    def __init__(
        self,
        workspace: Workspace,
        problem: Problem,
        verifier: Verifier | None,
        how: Transfer,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> None:
        self._workspace = workspace
        self._problem = problem
        self._verifier = verifier
        self._compares = verifier is not None and "peers" in verifier.needs
        self._how = how
        self._max_new_tokens = max_new_tokens
        self._stop = stop
        self._spent = Cost.nothing()
        self._made: list[Answer] = []
        self._passed: Judged | None = None
        self._first: Judged | None = None  # what is returned where none passes

    def run(self, contexts: Sequence[_Context]) -> Judged:
        for context in contexts:
            if self._greedy(context) or self._verifier is None:
                break
        else:
            if self._how.attempts > 1:
                any(self._samples(context) for context in contexts)
        if self._compares:
            self._compare()
        seen = self._passed or self._first
        assert seen is not None  # there was a context
        how = TRANSFERRED if seen.passed else FRESH
        return replace(seen, answer=replace(seen.answer, how=how, cost=self._spent))

    def _greedy(self, context: _Context) -> bool:
        answer = fresh_answer(
            self._workspace,
            context.prompt,
            self._max_new_tokens,
            stop=self._stop,
        )
        self._spent += answer.cost
        return self._see(replace(answer, context=context.deposits))

    def _samples(self, context: _Context) -> bool:
        space = self._workspace
        batch = attempt(
            space.engine,
            space.chunks,
            context.prompt,
            self._how.attempts - 1,
            self._how.sampling,
            self._max_new_tokens,
            salt=space.salt,
            load=space.load,
            on_finish=lambda lane, made: self._see(self._answer(context, made)),
        )
        self._spent += batch.cost
        return self._passed is not None

    def _answer(self, context: _Context, made: Attempt) -> Answer:
        engine = self._workspace.engine
        text = until(made.text, self._stop)
        found = extract(text)
        return Answer(
            how=FRESH,
            text=text,
            answer=found.answer if found else None,
            grade="none",
            exact=None,
            cost=Cost.nothing(),
            finished=made.finished,
            context=context.deposits,
            provenance={"model": engine.model, "fingerprint": engine.fingerprint.hex},
        )

    def _see(self, answer: Answer) -> bool:
        """Judge an attempt, unless the others have to be there first; whether it passed."""
        self._made.append(answer)
        if self._compares:
            self._first = self._first or Judged(answer)
            return False
        return self._judge(answer, ())

    def _judge(self, answer: Answer, peers: Sequence[str]) -> bool:
        seen = judged(answer, self._problem, self._verifier, peers)
        self._first = self._first or seen
        self._passed = seen if seen.passed else None
        return seen.passed

    def _compare(self) -> None:
        for answer in self._made:
            peers = [
                other.text
                for other in self._made
                if other.finished and other.context != answer.context
            ]
            if peers and self._judge(answer, peers):
                return
