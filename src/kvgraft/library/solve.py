"""Solve: sample attempts in one batch from one prompt state, verify, deposit the first pass.

Resumable: how far a run got with each problem is written down as it goes. A generation that was
cut off by its budget is never deposited, whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field

from kvgraft.decode import Decoded, Sampling, sample_lanes
from kvgraft.errors import ContextTooLong, StoreError, UsageError
from kvgraft.identity import digest_json
from kvgraft.library.deposit import Deposit
from kvgraft.library.problem import Problem
from kvgraft.library.replay import make_deposit, rendered_otherwise
from kvgraft.library.verify.base import Verdict, Verifier
from kvgraft.library.workspace import Workspace
from kvgraft.limits import MAX_ATTEMPTS, MAX_NEW_TOKENS
from kvgraft.meter import Cost, Stopwatch
from kvgraft.prompt import Prompt, problem_prompt
from kvgraft.reuse import Keep, compute_prompt

KNOWN, SOLVED, UNSOLVED, NO_ROOM = "known", "solved", "unsolved", "no_room"


@dataclass(frozen=True)
class Effort:
    """`attempts` lanes of at most `max_new_tokens` tokens each."""

    attempts: int = 8
    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise UsageError(f"attempts must be 1 to {MAX_ATTEMPTS}, not {self.attempts}")
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise UsageError(f"max tokens must be 1 to {MAX_NEW_TOKENS}")


@dataclass(frozen=True)
class Outcome:
    """What became of one problem. `state`: known (a deposit was there), solved, unsolved, or
    no_room (prompt and budget do not fit the context)."""

    problem: Problem
    state: str
    deposit_id: str | None
    answer: str | None
    replays: bool | None
    cost: Cost
    detail: str = ""


def run_key(workspace: Workspace, verifier: Verifier, effort: Effort) -> str:
    """Names a run: the same model, verifier and effort go on where they stopped."""
    parts = [workspace.engine.fingerprint.hex, workspace.tenant, verifier.name, verifier.version]
    return digest_json([*parts, asdict(effort)])


def problem_key(workspace: Workspace, problem: Problem) -> str:
    """Names a problem in a run. With another key or other checks, it is to be solved again."""
    address = workspace.space(problem.system).address(problem.text)
    return digest_json([address.hex(), problem.expected, dict(problem.checks)])


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


def solve_all(
    workspace: Workspace,
    problems: Iterable[Problem],
    verifier: Verifier,
    effort: Effort,
    on_step: Callable[[Problem, int, int], None] = lambda problem, step, running: None,
) -> Iterator[Outcome]:
    """Solve problems one after the other; what an earlier, interrupted run finished is not done
    again.

    Raises:
        InputError: a problem cannot be posed to this model.
        VerifierError: the verifier cannot judge these problems at all.
        StoreError: the library cannot be written.
    """
    run = run_key(workspace, verifier, effort)
    for problem in problems:
        key = problem_key(workspace, problem)
        done = workspace.library.run_get(run, key)
        if done is not None and done.state in (UNSOLVED, NO_ROOM):
            prompt = problem_prompt(workspace.engine.tokenizer, problem.text, problem.system)
            if _look_up(workspace, problem, prompt).deposit is None:
                detail = "an earlier run with the same effort ended so"
                yield Outcome(problem, done.state, None, None, None, Cost(), detail)
                continue
        outcome = solve(workspace, problem, verifier, effort, on_step)
        workspace.library.run_put(
            run,
            key,
            state=outcome.state,
            attempts_done=outcome.cost.attempts,
            detail=outcome.cost.as_dict(),
        )
        yield outcome


def solve(
    workspace: Workspace,
    problem: Problem,
    verifier: Verifier,
    effort: Effort,
    on_step: Callable[[Problem, int, int], None] = lambda problem, step, running: None,
) -> Outcome:
    """Solve one problem, unless a deposit made under this fingerprint is there already.

    Raises:
        InputError: the problem cannot be posed to this model.
        VerifierError, StoreError: as `solve_all`.
    """
    watch = Stopwatch()
    prompt = problem_prompt(workspace.engine.tokenizer, problem.text, problem.system)
    found = _look_up(workspace, problem, prompt)
    if (known := found.deposit) is not None:
        cost = Cost(seconds=watch.seconds)
        return Outcome(problem, KNOWN, known.id, known.answer, known.replay == "replays", cost)
    cost = Cost()
    try:
        passed = _attempt(workspace, problem, prompt, verifier, effort, cost, on_step)
    except ContextTooLong as error:
        cost.seconds = watch.seconds
        return Outcome(problem, NO_ROOM, None, None, None, cost, str(error))
    cost.seconds = watch.seconds
    if passed is None:
        return Outcome(problem, UNSOLVED, None, None, None, cost)
    trace, verdict = passed
    deposit = make_deposit(
        workspace,
        problem,
        prompt,
        trace,
        verdict,
        verifier,
        cost.as_dict(),
        supersede=found.stale,
    )
    return _solved(problem, deposit, cost)


def _solved(problem: Problem, deposit: Deposit, cost: Cost) -> Outcome:
    replays = deposit.replay == "replays"
    return Outcome(
        problem, SOLVED, deposit.id, deposit.answer, replays, cost, deposit.replay_reason
    )


def _attempt(
    workspace: Workspace,
    problem: Problem,
    prompt: Prompt,
    verifier: Verifier,
    effort: Effort,
    cost: Cost,
    on_step: Callable[[Problem, int, int], None],
) -> tuple[str, Verdict] | None:
    """The first verified trace of a batch of attempts, or None; counts into `cost`."""
    engine = workspace.engine
    computed = compute_prompt(
        engine,
        workspace.chunks,
        prompt.ids,
        salt=workspace.salt,
        keep=Keep.BLOCKS,
        load=workspace.load,
        room=effort.max_new_tokens,
    )
    cost.prefill_tokens = computed.report.computed_tokens
    cost.reused_tokens = computed.report.reused_tokens
    cost.attempts = effort.attempts
    passed: list[tuple[str, Verdict]] = []

    def judge(lane: int, decoded: Decoded) -> bool:
        trace = engine.tokenizer.decode(decoded.ids)
        verdict = verifier.verify(problem.case(), trace)
        if verdict.passed and verdict.answer is not None:
            passed.append((trace, verdict))
        return bool(passed)

    try:
        lanes = computed.context.fork(effort.attempts, effort.max_new_tokens)
    finally:
        computed.context.close()
    try:
        decoded = sample_lanes(
            lanes,
            effort.max_new_tokens,
            engine.tokenizer.stop_ids,
            effort.sampling,
            judge,
            lambda step, running: on_step(problem, step, running),
        )
    finally:
        lanes.close()
    cost.decode_tokens = sum(lane.steps for lane in decoded)
    return passed[0] if passed else None
