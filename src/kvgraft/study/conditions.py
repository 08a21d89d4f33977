"""What is compared: the bare model, the library, and the baselines that a reader would think of.

Each function is one step: it adds the rows that are not there yet to its results. Two baselines
need no model, and are made when the results are scored: the plain answer cache and the similarity
cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kvgraft.energy import Measure
from kvgraft.errors import ContextTooLong
from kvgraft.library.answer import FRESH, fresh_answer
from kvgraft.library.ask import ask
from kvgraft.library.attempts import Batch
from kvgraft.library.ladder import derived_seed
from kvgraft.library.related import related
from kvgraft.library.solve import KNOWN, NO_ROOM, UNSOLVED, Outcome, problem_key, run_key, solve_all
from kvgraft.library.transfer import PAGE, SINGLE, Transfer, solutions_prompt
from kvgraft.library.verify.base import Verifier
from kvgraft.library.verify.consensus import vote
from kvgraft.library.verify.extract import extract
from kvgraft.library.verify.specs import make_verifier
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.prompt import problem_prompt
from kvgraft.reuse import Keep
from kvgraft.study.bench import MAIN, Bench, answer_row, copy_store, each, messages
from kvgraft.study.items import HELD_OUT, RECURRING, Item, of_group
from kvgraft.study.journal import Journal, Row

NO_STATES = "scratch"  # a store that nothing is kept in
EMPTIED = "emptied"


def greedy_step(bench: Bench, journal: Journal) -> None:
    """The bare model: one greedy attempt at every problem, nothing reused, nothing kept."""
    if bench.engine is None:
        each(bench, journal, bench.items, lambda item: _endpoint_greedy(bench, item))
        return
    with bench.workspace(NO_STATES) as space:
        each(bench, journal, bench.items, lambda item: bare_row(bench, space, item))


def bare_row(bench: Bench, space: Workspace, item: Item) -> Row:
    """The bare model's answer to one problem."""
    tokenizer = space.engine.tokenizer
    with Measure(bench.meter) as window:
        try:
            prompt = problem_prompt(tokenizer, item.problem.text, item.problem.system)
            answer = fresh_answer(space, prompt, bench.protocol.ask.max_new_tokens, store=False)
        except ContextTooLong as error:
            return _no_room(error)
    return answer_row(replace(answer, cost=window.into(answer.cost)))


def _endpoint_greedy(bench: Bench, item: Item) -> Row:
    with Measure(bench.meter) as window:
        batch = bench.model.attempt(
            messages(item.problem), 1, None, bench.protocol.ask.max_new_tokens, keep=Keep.NOTHING
        )
    attempt = batch.attempts[0]
    found = extract(attempt.text) if attempt.finished else None
    return {
        "how": FRESH,
        "grade": "none",
        "answer": found.answer if found is not None else None,
        "text": attempt.text,
        "finished": attempt.finished,
        "cost": window.into(batch.cost).as_dict(),
    }


def vote_step(bench: Bench, journal: Journal) -> None:
    """Sampling with majority vote, of the attempts that came to their end. A tie is no answer."""
    effort = bench.effort("vote")

    def make(item: Item) -> Row:
        seed = derived_seed(effort.sampling.seed, item.id)
        with Measure(bench.meter) as window:
            try:
                batch = bench.model.attempt(
                    messages(item.problem),
                    effort.attempts,
                    replace(effort.sampling, seed=seed),
                    effort.max_new_tokens,
                    keep=Keep.NOTHING,
                )
            except ContextTooLong as error:
                return _no_room(error)
        return {**_voted(batch), "cost": window.into(batch.cost).as_dict()}

    each(bench, journal, bench.items, make)


def _voted(batch: Batch) -> Row:
    answers = [vote(one.text) if one.finished else None for one in batch.attempts]
    ranked = Counter(filter(None, answers)).most_common(2)
    clear = bool(ranked) and (len(ranked) == 1 or ranked[0][1] > ranked[1][1])
    return {
        "how": FRESH,
        "grade": "none",
        "answer": ranked[0][0] if clear else None,
        "share": ranked[0][1] / len(answers) if clear else None,
        "answers": answers,
        "texts": [one.text for one in batch.attempts],
        "finished": True,
    }


def deposit_step(bench: Bench, journal: Journal) -> None:
    """Solve the deposit split, verify, and keep what passes."""
    verifier = make_verifier(bench.protocol.verifier)
    try:
        with bench.workspace(MAIN) as space:
            solve_rows(bench, journal, space, verifier, of_group(bench.items, RECURRING), "deposit")
    finally:
        verifier.close()


def solve_rows(
    bench: Bench,
    journal: Journal,
    space: Workspace,
    verifier: Verifier,
    items: list[Item],
    step: str,
) -> None:
    """A row for each problem that is solved or not; what was kept is in the library of `space`."""
    effort = bench.effort(step)
    done = {row["id"] for row in journal.rows}
    todo = [item for item in items if item.id not in done]
    by_id = {item.id: item for item in todo}
    outcomes = solve_all(space, [item.problem for item in todo], verifier, effort)
    for number in range(len(todo)):
        with Measure(bench.meter) as window:
            outcome = next(outcomes)
        item = by_id[outcome.problem.id]
        earlier = _account(space, outcome, run_key(space, verifier, effort))
        cost, rungs = outcome.cost, [dict(rung.as_dict()) for rung in outcome.rungs]
        if earlier is not None:
            cost, rungs = earlier
        # Of a run that was stopped between a deposit and its row, only the solving is known.
        whole = window.into(cost).as_dict() if earlier is None else None
        journal.append(
            {
                "id": item.id,
                "group": item.group,
                "state": outcome.state,
                "answer": outcome.answer,
                "grade": None if outcome.deposit_id is None else _grade(space, outcome.deposit_id),
                "deposit_id": outcome.deposit_id,
                "replays": outcome.replays,
                "detail": outcome.detail,
                "rungs": rungs,
                "cost": cost.as_dict(),
                "cost_with_capture": whole,
            }
        )
        bench.follow(journal.name, len(done) + number + 1, len(items))


def _account(
    space: Workspace, outcome: Outcome, run: str
) -> tuple[Cost, list[dict[str, Any]]] | None:
    """What solving took and its rungs, where an earlier process did it; else None."""
    kept: Mapping[str, Any] = {}
    if outcome.state == KNOWN and outcome.deposit_id is not None:
        kept = space.library.get(outcome.deposit_id).cost
    elif outcome.state in (UNSOLVED, NO_ROOM) and not outcome.rungs:
        found = space.library.run_get(run, problem_key(space, outcome.problem))
        kept = {} if found is None else found.detail
    if not kept.get("rungs"):
        return None
    names = Cost().as_dict()
    cost = Cost(**{name: kept[name] for name in names if name in kept})
    return cost, list(kept["rungs"])


def _grade(space: Workspace, deposit_id: str) -> str:
    return space.library.get(deposit_id).verdict.grade


def library_step(bench: Bench, journal: Journal) -> None:
    """Every problem asked, with the library there: by a process that deposited nothing."""
    with bench.workspace(MAIN) as space, held_out_judge(bench) as judge:
        each(bench, journal, bench.items, lambda item: library_row(bench, space, item, judge))


@contextmanager
def held_out_judge(bench: Bench) -> Iterator[Verifier | None]:
    """The verifier of held-out answers, closed afterwards; None where they are not judged."""
    verifier = make_verifier(bench.protocol.verifier) if bench.protocol.ask.verified else None
    try:
        yield verifier
    finally:
        if verifier is not None:
            verifier.close()


def library_row(bench: Bench, space: Workspace, item: Item, judge: Verifier | None) -> Row:
    """One question to a library. Held-out problems get related solutions as grafted context."""
    ask_spec = bench.protocol.ask
    if item.group != HELD_OUT or not ask_spec.solutions:
        return ask_row(bench, space, item)
    if judge is not None and "peers" in judge.needs:
        found = related(space.library, space.tenant, item.problem.text, count=ask_spec.solutions)
        judge = judge if len(found) > 1 else None  # it has nothing to compare
    position = PAGE if judge is None else SINGLE
    transfer = Transfer(position, ask_spec.solutions, sampling=bench.effort("library").sampling)
    return ask_row(bench, space, item, judge, transfer)


def few_shot_step(bench: Bench, journal: Journal) -> None:
    """The same solutions as text before the problem: no state reused, nothing replayed."""
    with bench.workspace(MAIN) as space:
        each(bench, journal, bench.items, lambda item: _few_shot(bench, space, item))


def _few_shot(bench: Bench, space: Workspace, item: Item) -> Row:
    ask_spec = bench.protocol.ask
    with Measure(bench.meter) as window:
        found = related(space.library, space.tenant, item.problem.text, count=ask_spec.solutions)
        deposits = sorted((one.deposit for one in found), key=lambda deposit: deposit.id)
        try:
            prompt = solutions_prompt(space.engine.tokenizer, item.problem, deposits)
            answer = fresh_answer(space, prompt, ask_spec.max_new_tokens, store=False)
        except ContextTooLong as error:
            return _no_room(error)
    row = answer_row(replace(answer, cost=window.into(answer.cost)))
    return {**row, "context": [deposit.id for deposit in deposits]}


def emptied_step(bench: Bench, journal: Journal) -> None:
    """The library taken away, the states left: prefix caching alone, and at the same time the
    control that a library without deposits is the bare model."""
    copy_store(bench.store(MAIN), bench.store(EMPTIED), with_library=False)
    with bench.workspace(EMPTIED) as space:
        each(
            bench,
            journal,
            of_group(bench.items, RECURRING),
            lambda item: ask_row(bench, space, item),
        )


def ask_row(
    bench: Bench,
    space: Workspace,
    item: Item,
    judge: Verifier | None = None,
    transfer: Transfer | None = None,
) -> Row:
    """One question to a library, and what it answered."""
    tokens = bench.protocol.ask.max_new_tokens
    try:
        answer = ask(space, item.problem, verifier=judge, max_new_tokens=tokens, transfer=transfer)
    except ContextTooLong as error:
        return _no_room(error)
    return answer_row(answer)


def _no_room(error: ContextTooLong) -> Row:
    """Of a problem that does not fit: no answer, and nothing that was computed."""
    return {
        "how": FRESH,
        "grade": "none",
        "answer": None,
        "text": "",
        "finished": False,
        "reasons": [f"context_too_long: {error}"],
        "cost": Cost.nothing().as_dict(),
    }
