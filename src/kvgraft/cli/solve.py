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
from kvgraft.cli.output import (
    counted,
    duration,
    one_line,
    styled,
    write_document,
    write_line,
    write_text,
)
from kvgraft.cli.progress import Watch
from kvgraft.cli.session import EngineOptions, opened
from kvgraft.errors import InputError, KvgraftError

if TYPE_CHECKING:
    from kvgraft.api import Memory
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


def solve_command(
    file: ProblemFile,
    model: options.Model,
    verifier: VerifierOption,
    attempts: options.Attempts = 8,
    max_tokens: options.MaxTokens = 256,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    seed: options.Seed = 0,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    engine: options.EngineOption = options.Engine.transformers,
    load: options.LoadOption = options.Load.measured,
    dtype: options.DtypeOption = options.Dtype.bfloat16,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    paranoid: options.Paranoid = False,
    as_json: options.AsJson = False,
) -> None:
    """Solve problems, verify, deposit what passes.

    Attempts are sampled in one batch, and the first that the verifier passes is deposited with
    the model's state up to its answer: asked again, it is answered in a few tokens. Interrupted
    (Ctrl-C), the same command goes on where it stopped. Problems that stay unsolved are counted,
    and are no error.
    """
    from kvgraft.decode import Sampling
    from kvgraft.library.problem import read_problems
    from kvgraft.library.solve import Effort
    from kvgraft.library.verify.base import make_verifier

    # What can be refused is refused before a model is loaded.
    problems = read_problems(file)
    effort = Effort(attempts, max_tokens, Sampling(temperature, top_p, seed))
    judge = make_verifier(verifier)
    _need_answers(judge, problems, file)
    chosen = EngineOptions(dtype.value, device, threads, paranoid, engine.value)
    lines = None if as_json else _Lines(problems)
    outcomes: list[Outcome] = []
    try:
        with _resumable(outcomes, len(problems)), Watch(f"opening {model}") as watch:
            follow = _Following(watch, problems, max_tokens)
            with opened(model, store, tenant, chosen, watch, load.value) as memory:
                watch.restart("solving")
                for outcome in memory.solve_all(
                    problems, verifier=judge, effort=effort, on_step=follow.step
                ):
                    outcomes.append(_with_reason(outcome, memory))
                    if lines is not None:
                        with watch.aside():
                            lines.write(outcomes[-1])
    finally:
        judge.close()
    if as_json:
        write_document(as_document(outcomes))
    else:
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


def _need_answers(verifier: Verifier, problems: list[Problem], file: Path) -> None:
    """Refuse at once what would end the run at the first problem without an answer."""
    if "expected" not in verifier.needs:
        return
    without = [problem.id for problem in problems if not (problem.expected or "").strip()]
    if without:
        raise InputError(
            f"the verifier {verifier.name!r} needs an answer to each problem; "
            f"{len(without)} have none, the first is {without[0]!r}",
            where=str(file),
            hint='add "answer": "..." to the line, or choose a verifier that needs none',
        )


class _Following:
    """Shows which problem is being attempted, and how far its samples are."""

    def __init__(self, watch: Watch, problems: list[Problem], max_tokens: int) -> None:
        self._watch = watch
        self._numbers = {problem.id: n for n, problem in enumerate(problems, 1)}
        self._max_tokens = max_tokens

    def step(self, problem: Problem, step: int, running: int) -> None:
        number = self._numbers[problem.id]
        words = f"problem {number} of {len(self._numbers)}, {running} attempts going, tokens"
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
                str(outcome.cost.decode_tokens),
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
    states = Counter(outcome.state for outcome in outcomes)
    replays = Counter(outcome.replays for outcome in outcomes)
    return {
        "problems": len(outcomes),
        **{state: states[state] for state in ("solved", "known", "unsolved", "no_room")},
        "replays": replays[True],
        "text_only": replays[False],
        "attempts": sum(outcome.cost.attempts for outcome in outcomes),
        "prefill_tokens": sum(outcome.cost.prefill_tokens for outcome in outcomes),
        "reused_tokens": sum(outcome.cost.reused_tokens for outcome in outcomes),
        "decode_tokens": sum(outcome.cost.decode_tokens for outcome in outcomes),
        "seconds": sum(outcome.cost.seconds for outcome in outcomes),
    }


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
        }
        for outcome in outcomes
    ]
    return {"outcomes": rows, "totals": totals(outcomes)}


def _totals_line(total: dict[str, Any]) -> str:
    return (
        f"{counted(total['problems'], 'problem')}: "
        f"{total['solved']} solved, {total['known']} known before, "
        f"{total['unsolved']} unsolved, {total['no_room']} without room; "
        f"{total['replays']} replay, {total['text_only']} text only; "
        f"{total['decode_tokens']:,} tokens decoded in {duration(total['seconds'])}"
    )
