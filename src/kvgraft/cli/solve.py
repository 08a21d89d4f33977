"""`kvgraft solve`: a file of problems, solved, verified and deposited; a line each as it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.option_groups import MemoryOptions, grouped
from kvgraft.cli.output import (
    counted,
    duration,
    one_line,
    styled,
    work,
    write_document,
    write_line,
    write_table,
    write_text,
)
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import opened
from kvgraft.errors import InputError, KvgraftError

if TYPE_CHECKING:
    from kvgraft.api import Memory
    from kvgraft.library.climb import RungCost
    from kvgraft.library.ladder import Effort, Rung
    from kvgraft.library.problem import Problem
    from kvgraft.library.solve import Outcome
    from kvgraft.library.verify.base import Verifier

_RESUME = "run the same command again: what is finished is kept and not done again"
_ID_COLUMNS, _ANSWER_COLUMNS = 24, 20


ProblemFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.jsonl",
        help='Problems, one JSON object a line: {"problem": "...", "answer": "...", "id": "...", '
        '"system": "..."}; all but the problem may be left out.',
    ),
]
VerifierOption = Annotated[
    str, typer.Option("--verifier", metavar="V", help=options.VERIFIER_HELP, show_default=False)
]
Temperature = Annotated[
    float, typer.Option("--temperature", metavar="T", help="Over 0; higher varies more.")
]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="Nucleus, over 0 and up to 1.")]
EffortOption = Annotated[
    str,
    typer.Option(
        "--effort",
        metavar="LADDER",
        help="Rungs to climb until an attempt passes, such as 'greedy + sample:8 + correct:2 + "
        "larger:demo:qwen-coder-1.5b': greedy; sample[:K][@T[,P]]; correct[:ROUNDS[xK]], which "
        "tells the model what was wrong; larger:[K:]MODEL, a model or http://HOST:PORT/v1#NAME. "
        "'sample' alone takes --attempts.",
    ),
]
BudgetTokens = Annotated[
    int | None,
    typer.Option(
        "--budget-tokens",
        min=1,
        metavar="N",
        help="At most so many tokens computed for a problem, prompts and attempts together.",
        show_default=False,
    ),
]
BudgetSeconds = Annotated[
    float | None,
    typer.Option(
        "--budget-seconds",
        metavar="S",
        help="No further step for a problem after so many seconds.",
        show_default=False,
    ),
]
BudgetJoules = Annotated[
    float | None,
    typer.Option(
        "--budget-joules",
        metavar="J",
        help="No further step for a problem after so many joules; needs a meter, or --watts.",
        show_default=False,
    ),
]


Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="WHEN",
        help="New deposits hold until then: a date or time, UTC unless it says its zone.",
        show_default=False,
    ),
]


@grouped
def solve_command(
    file: ProblemFile,
    model: options.Model,
    verifier: VerifierOption,
    effort: EffortOption = "sample",
    attempts: options.Attempts = 8,
    max_tokens: options.MaxTokens = 256,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    seed: options.Seed = 0,
    budget_tokens: BudgetTokens = None,
    budget_seconds: BudgetSeconds = None,
    budget_joules: BudgetJoules = None,
    expires: Expires = None,
    *,
    memory_options: MemoryOptions,
    watts: options.Watts = None,
    as_json: options.AsJson = False,
) -> None:
    """Solve problems, verify, deposit what passes.

    Attempts are made in batches, each from one prompt state, and the first that the verifier
    passes is deposited with the model's state up to its answer: asked again, it is answered in a
    few tokens. Interrupted (Ctrl-C), the same command goes on where it stopped. Problems that stay
    unsolved are counted, and are no error.
    """
    from kvgraft.decode import Sampling
    from kvgraft.library.budget import Budget
    from kvgraft.library.ladder import Effort
    from kvgraft.library.problem import read_problems
    from kvgraft.library.times import coming
    from kvgraft.library.verify.specs import make_verifier

    # What can be refused is refused before a model is loaded.
    expires_at = None if expires is None else coming(expires)
    problems = read_problems(file)
    budget = Budget(budget_tokens, budget_seconds, budget_joules)
    sampling = Sampling(temperature, top_p, seed)
    hard = Effort(attempts, max_tokens, sampling, effort, budget)
    judge = make_verifier(verifier)
    _check(judge, hard, watts, problems, file)
    lines = None if as_json else _Lines(problems)
    outcomes: list[Outcome] = []
    try:
        with _resumable(outcomes, len(problems)), Watch(f"opening {model}") as watch:
            follow = _Following(watch, problems, hard)
            with opened(model, memory_options, watch, watts) as memory:
                watch.restart("solving")
                for outcome in _outcomes(memory, problems, judge, hard, expires_at, follow):
                    outcomes.append(outcome)
                    if lines is not None:
                        with watch.aside():
                            lines.write(outcome)
    finally:
        judge.close()
    if as_json:
        write_document(as_document(outcomes))
    else:
        _write_rungs(outcomes)
        write_line(_totals_line(totals(outcomes)))


@contextmanager
def _resumable(outcomes: list[Outcome], count: int) -> Iterator[None]:
    """What ends the run early is told together with what was finished, and how to go on."""
    try:
        yield
    except (KvgraftError, KeyboardInterrupt) as error:
        if not outcomes and isinstance(error, KvgraftError):
            raise
        hint = f"{len(outcomes)} of {count} problems are finished; {_RESUME}"
        raise Stopped(error, as_document(outcomes), hint) from error


def _outcomes(
    memory: Memory,
    problems: list[Problem],
    verifier: Verifier,
    effort: Effort,
    expires_at: str | None,
    follow: _Following,
) -> Iterator[Outcome]:
    solving = memory.solve_all(
        problems,
        verifier=verifier,
        effort=effort,
        on_step=follow.step,
        on_rung=follow.rung,
        expires_at=expires_at,
    )
    for outcome in solving:
        yield _with_reason(outcome, memory)


def _check(
    verifier: Verifier, effort: Effort, watts: float | None, problems: list[Problem], file: Path
) -> None:
    """Refuse at once what would end the run later: a budget that nothing measures, attempts that
    the verifier cannot compare, problems without what it needs."""
    from kvgraft.energy import EnergyMeter
    from kvgraft.library.solve import check_effort

    metered = effort.budget.joules is not None
    check_effort(effort, verifier, EnergyMeter(watts=watts) if metered else None)
    for need in sorted(verifier.needs - {"peers"}):
        expected = need == "expected"
        without = [
            problem.id
            for problem in problems
            if (not (problem.expected or "").strip() if expected else need not in problem.checks)
        ]
        if without:
            what = "an answer" if expected else f"the check {need!r}"
            line = '"answer": "..."' if expected else f'"checks": {{"{need}": ...}}'
            raise InputError(
                f"the verifier {verifier.name!r} needs {what} to each problem; "
                f"{len(without)} have none, the first is {without[0]!r}",
                where=str(file),
                hint=f"add {line} to the line, or choose a verifier that needs none",
            )


class _Following:
    """Shows which problem is being attempted, on which rung, and how far its attempts are."""

    def __init__(self, watch: Watch, problems: list[Problem], effort: Effort) -> None:
        self._watch = watch
        self._numbers = {problem.id: n for n, problem in enumerate(problems, 1)}
        self._max_tokens = effort.max_new_tokens
        self._rungs = len(effort.ladder)
        self._rung = ""

    def rung(self, problem: Problem, number: int, rung: Rung) -> None:
        where = f"problem {self._numbers[problem.id]} of {len(self._numbers)}"
        of_several = f", rung {number + 1} of {self._rungs}, {rung.spec}"
        self._rung = where + (of_several if self._rungs > 1 else "")
        self._watch.steps(self._rung, 0, 0)

    def step(self, problem: Problem, step: int, running: int) -> None:
        words = f"{self._rung}, {counted(running, 'attempt')} going, tokens"
        self._watch.steps(words, min(step, self._max_tokens), self._max_tokens)


def _with_reason(outcome: Outcome, memory: Memory) -> Outcome:
    """A known deposit that is text only says why, as a new one does."""
    from dataclasses import replace

    if outcome.replays is False and not outcome.detail and outcome.deposit_id:
        reason = memory.library.get(outcome.deposit_id).replay_reason
        return replace(outcome, detail=reason)
    return outcome


# --- what is printed ----------------------------------------------------------------------------


class _Lines:
    """A line for each outcome as it comes, below a heading."""

    def __init__(self, problems: list[Problem]) -> None:
        longest = max(len(problem.id) for problem in problems)
        self._id_columns = min(max(longest, len("problem")), _ID_COLUMNS)
        self._began = False

    def write(self, outcome: Outcome) -> None:
        if not self._began:
            self._began = True
            write_text(self._row("problem", "answer", "kept", "tokens", "seconds", "state"))
        detail = f"  {one_line(outcome.detail, 120)}" if outcome.detail else ""
        write_text(
            self._row(
                one_line(outcome.problem.id, self._id_columns),
                "-" if outcome.answer is None else one_line(outcome.answer, _ANSWER_COLUMNS),
                {True: "replays", False: "text only", None: "-"}[outcome.replays],
                _count(outcome.cost.decode_tokens),
                f"{outcome.cost.seconds:.2f}",
                outcome.state,
            ),
            detail,
        )

    def _row(self, id: str, answer: str, kept: str, tokens: str, seconds: str, state: str) -> Text:
        return Text.assemble(
            f"{id:<{self._id_columns}}  ",
            styled(state, 8),
            f"  {answer:<{_ANSWER_COLUMNS}}  {kept:<9}  {tokens:>7}  {seconds:>8}",
        )


def totals(outcomes: list[Outcome]) -> dict[str, Any]:
    """Counts by state, and what it all took."""
    from kvgraft.meter import Cost

    states = Counter(outcome.state for outcome in outcomes)
    replays = Counter(outcome.replays for outcome in outcomes)
    return {
        "problems": len(outcomes),
        **{state: states[state] for state in ("solved", "known", "unsolved", "no_room")},
        "replays": replays[True],
        "text_only": replays[False],
        **sum((outcome.cost for outcome in outcomes), Cost.nothing()).as_dict(),
        "rungs": rung_totals(outcomes),
    }


def rung_totals(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Of each rung that was climbed: how many problems came to it, how many it solved, and what
    it took."""
    climbed: dict[tuple[int, str], list[RungCost]] = {}
    for outcome in outcomes:
        for number, rung in enumerate(outcome.rungs):
            climbed.setdefault((number, rung.rung), []).append(rung)
    return [
        {
            "rung": spec,
            "problems": len(rungs),
            "passed": sum(rung.passed for rung in rungs),
            **sum((rung.cost for rung in rungs[1:]), rungs[0].cost).as_dict(),
        }
        for (_, spec), rungs in sorted(climbed.items(), key=lambda item: item[0][0])
    ]


def as_document(outcomes: list[Outcome]) -> dict[str, Any]:
    """All outcomes as plain data, and their totals."""
    rows = [
        {
            "id": outcome.problem.id,
            "problem": outcome.problem.text,
            "state": outcome.state,
            "answer": outcome.answer,
            "deposit_id": outcome.deposit_id,
            "replays": outcome.replays,
            "detail": outcome.detail,
            "cost": asdict(outcome.cost),
            "rungs": [rung.as_dict() for rung in outcome.rungs],
        }
        for outcome in outcomes
    ]
    return {"outcomes": rows, "totals": totals(outcomes)}


def _write_rungs(outcomes: list[Outcome]) -> None:
    """The account of each rung, where there were several."""
    rows = rung_totals(outcomes)
    if len(rows) < 2:
        return
    names = ("problems", "passed", "attempts", "prefill_tokens", "reused_tokens", "decode_tokens")
    columns = ("rung", "tried", "passed", "attempts", "computed", "reused", "decoded", "seconds")
    write_line()
    write_table(
        columns,
        [
            (row["rung"], *map(_count, (row[name] for name in names)), f"{row['seconds']:.2f}")
            for row in rows
        ],
        right=columns[1:],
    )
    write_line()


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _totals_line(total: dict[str, Any]) -> str:
    return (
        f"{counted(total['problems'], 'problem')}: "
        f"{total['solved']} solved, {total['known']} known before, "
        f"{total['unsolved']} unsolved, {total['no_room']} without room; "
        f"{total['replays']} replay, {total['text_only']} text only; "
        f"{_count(total['decode_tokens'])} tokens decoded in {duration(total['seconds'])}; "
        f"{work(total)}"
    )
