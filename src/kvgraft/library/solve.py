"""Solve: climb the effort ladder with each problem, verify, deposit the first pass.

Resumable: how far a run got with each problem is written down after every rung. A generation that
was cut off is never deposited, whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvgraft.energy import EnergyMeter, Measure
from kvgraft.engines.base import Engine
from kvgraft.engines.registry import open_engine
from kvgraft.errors import LimitExceeded, StoreError, UsageError
from kvgraft.identity import digest_json
from kvgraft.library.climb import Climb, Larger, Passed, RungCost
from kvgraft.library.deposit import Deposit
from kvgraft.library.json_numbers import dumps
from kvgraft.library.ladder import Effort, Rung
from kvgraft.library.problem import Problem
from kvgraft.library.replay import make_deposit, rendered_otherwise
from kvgraft.library.times import coming
from kvgraft.library.verify.base import Verifier
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.prompt import Prompt, problem_prompt

__all__ = ["Effort", "Outcome", "RungCost", "solve_all"]

KNOWN, SOLVED, UNSOLVED, NO_ROOM = "known", "solved", "unsolved", "no_room"
CLIMBING = "climbing"  # of a run that is not done with a problem

OnStep = Callable[[Problem, int, int], None]
OnRung = Callable[[Problem, int, Rung], None]


@dataclass(frozen=True)
class Outcome:
    """What became of one problem. `state`: known (a deposit was there), solved, unsolved, or
    no_room (prompt and new tokens do not fit the context). `cost` is that of all `rungs`, the
    climbed ones, those of an interrupted run included. `detail` names what the budget had too
    little of, rungs that were left out, or why a deposit does not replay."""

    problem: Problem
    state: str
    deposit_id: str | None
    answer: str | None
    replays: bool | None
    cost: Cost
    detail: str = ""
    rungs: tuple[RungCost, ...] = ()


def run_key(workspace: Workspace, verifier: Verifier, effort: Effort) -> str:
    """Names a run: the same model, verifier and effort go on where they stopped."""
    parts = [workspace.engine.fingerprint.hex, workspace.tenant, verifier.name, verifier.version]
    tries = [effort.max_new_tokens, asdict(effort.sampling), effort.spec, asdict(effort.budget)]
    return digest_json([*parts, *tries])


def problem_key(workspace: Workspace, problem: Problem) -> str:
    """Names a problem in a run. With another key or other checks, it is to be solved again."""
    address = workspace.space(problem.system).address(problem.text)
    parts = [address.hex(), problem.expected]
    try:
        return digest_json([*parts, dict(problem.checks)])
    except ValueError:  # a number in them has thousands of digits
        return digest_json([*parts, dumps(dict(problem.checks), sort_keys=True)])


@dataclass(frozen=True)
class _Found:
    """What the library has for a problem. `stale`: a deposit is in its place that does not serve
    (damaged, or of a prompt that is rendered otherwise today), for a new one to supersede."""

    deposit: Deposit | None
    stale: bool = False


def _look_up(workspace: Workspace, problem: Problem, prompt: Prompt) -> _Found:
    fingerprint = workspace.engine.fingerprint.hex
    address = workspace.space(problem.system).address(problem.text)
    try:
        deposit = workspace.library.find(address, workspace.tenant, fingerprint)
    except StoreError:  # a damaged record is a miss; what else it may be, writing will say
        return _Found(None, stale=True)
    if deposit is None or deposit.fingerprint != fingerprint:
        return _Found(None)
    if rendered_otherwise(deposit, prompt):
        return _Found(None, stale=True)
    return _Found(deposit)


def check_effort(effort: Effort, verifier: Verifier, meter: EnergyMeter | None) -> None:
    """Refuse what cannot come to anything.

    Raises:
        UsageError: a budget in joules, and no meter; a verifier that compares attempts, and no
            model that makes two.
    """
    effort.budget.check_meter(meter)
    if "peers" in verifier.needs and effort.comparable < 2:
        raise UsageError(
            f"the verifier {verifier.name!r} compares attempts, and {effort.spec!r} makes one",
            hint="let the ladder make more: sample:8",
        )


def solve_all(
    workspace: Workspace,
    problems: Iterable[Problem],
    verifier: Verifier,
    effort: Effort,
    on_step: OnStep = lambda problem, step, running: None,
    *,
    on_rung: OnRung = lambda problem, number, rung: None,
    open_larger: Callable[[str], Engine] = open_engine,
    expires_at: str | None = None,
) -> Iterator[Outcome]:
    """Solve problems one after the other; what an earlier, interrupted run finished, problems and
    rungs, is not done again.

    `on_rung(problem, number, rung)` is called as a rung begins, `on_step(problem, step, running)`
    with every token of its attempts. `open_larger` opens the engines of `larger` rungs. New
    deposits hold until `expires_at` (a date or time, ISO 8601), if that is given.

    Raises:
        InputError: a problem cannot be posed to this model; no date or time, or one that is over.
        VerifierError: the verifier cannot judge these problems at all.
        UsageError: as `check_effort`.
        EndpointError, or an error of opening a model: a larger model fails.
        StoreError: the library cannot be written.
    """
    check_effort(effort, verifier, workspace.meter)
    expires_at = None if expires_at is None else coming(expires_at)
    run = run_key(workspace, verifier, effort)
    larger = Larger(workspace, open_larger)
    solving = _Solving(workspace, verifier, effort, run, larger, on_step, on_rung, expires_at)
    try:
        for problem in problems:
            yield solving.solve(problem)
    finally:
        larger.close()


@dataclass(frozen=True)
class _Solving:
    """One run over many problems."""

    workspace: Workspace
    verifier: Verifier
    effort: Effort
    run: str
    larger: Larger
    on_step: OnStep
    on_rung: OnRung
    expires_at: str | None

    def solve(self, problem: Problem) -> Outcome:
        """Solve one problem, unless a deposit made under this fingerprint is there already, or
        this run has ended without one before."""
        space = self.workspace
        key = problem_key(space, problem)
        done = space.library.run_get(self.run, key)
        with Measure(space.meter) as looking:
            prompt = problem_prompt(space.engine.tokenizer, problem.text, problem.system)
            found = _look_up(space, problem, prompt)
        cost = looking.into(Cost.nothing())
        if (known := found.deposit) is not None:
            outcome = Outcome(
                problem, KNOWN, known.id, known.answer, known.replay == "replays", cost
            )
        elif done is not None and done.state in (UNSOLVED, NO_ROOM):
            detail = "an earlier run with the same effort ended so"
            return Outcome(problem, done.state, None, None, None, Cost.nothing(), detail)
        else:
            earlier = done.detail if done is not None and done.state == CLIMBING else None
            outcome = self._climb(problem, key, prompt, found, earlier)
        self._write_down(key, outcome.state, outcome.cost, _as_json(outcome))
        return outcome

    def _climb(
        self,
        problem: Problem,
        key: str,
        prompt: Prompt,
        found: _Found,
        earlier: Mapping[str, Any] | None,
    ) -> Outcome:
        climb = Climb(
            self.workspace,
            problem,
            self.verifier,
            self.effort,
            self.larger,
            earlier=earlier,
            on_step=self.on_step,
            on_rung=self.on_rung,
        )
        passed = climb.run(lambda climb: self._write_down(key, CLIMBING, climb.cost, climb.account))
        cost, rungs = climb.cost, tuple(climb.rungs)
        if passed is not None:
            deposit = self._deposit(problem, prompt, passed, cost, rungs, supersede=found.stale)
            replays = deposit.replay == "replays"
            return Outcome(
                *(problem, SOLVED, deposit.id, deposit.answer, replays),
                cost,
                deposit.replay_reason,
                rungs,
            )
        left_out = "; ".join(f"{one.rung}: {one.detail}" for one in rungs if one.detail)
        no_room = cost.attempts == 0 and "context_too_long" in left_out
        detail = f"budget: {climb.ran_out}" if climb.ran_out else left_out
        state = NO_ROOM if no_room else UNSOLVED
        return Outcome(problem, state, None, None, None, cost, detail, rungs)

    def _deposit(
        self,
        problem: Problem,
        prompt: Prompt,
        passed: Passed,
        cost: Cost,
        rungs: tuple[RungCost, ...],
        *,
        supersede: bool,
    ) -> Deposit:
        return make_deposit(
            self.workspace,
            problem,
            prompt,
            passed.trace,
            passed.verdict,
            self.verifier,
            {**cost.as_dict(), "rungs": [rung.as_dict() for rung in rungs]},
            case=passed.case,
            provenance=self._provenance(passed, cost),
            expires_at=self.expires_at,
            supersede=supersede,
        )

    def _provenance(self, passed: Passed, cost: Cost) -> dict[str, Any]:
        """Who wrote the trace, and what it would take to have it written again."""
        return {
            **asdict(passed.origin),
            "model": passed.origin.model or self.workspace.engine.model,
            "effort": self.effort.spec,
            "sampling": asdict(self.effort.sampling),
            "max_new_tokens": self.effort.max_new_tokens,
            "attempts": cost.attempts,
        }

    def _write_down(self, key: str, state: str, cost: Cost, detail: Mapping[str, Any]) -> None:
        try:
            self.workspace.library.run_put(
                self.run, key, state=state, attempts_done=cost.attempts, detail=detail
            )
        except LimitExceeded:
            # An account of many long texts. Without it, a climb that is interrupted is taken up
            # from an earlier rung.
            if state != CLIMBING:
                raise


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {**outcome.cost.as_dict(), "rungs": [rung.as_dict() for rung in outcome.rungs]}
