"""Climbing the ladder with one problem: rung by rung, until a verifier passes an attempt.

Verifiers that compare attempts with each other see every attempt of a rung with the others, once
the rung has made them all; any other judges an attempt as it ends, and its pass ends the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvgraft.energy import Measure
from kvgraft.engines.base import Engine, Message
from kvgraft.errors import ContextTooLong, InputError
from kvgraft.library.attempts import Attempt, LocalModel, Model
from kvgraft.library.budget import Allowance
from kvgraft.library.endpoint import EndpointModel, is_endpoint
from kvgraft.library.feedback import NOT_CHECKED, feedback
from kvgraft.library.ladder import CORRECT, GREEDY, LARGER, SAMPLE, Effort, Rung, derived_seed
from kvgraft.library.problem import Problem
from kvgraft.library.verify.base import Case, Verdict, Verifier
from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.extract import extract
from kvgraft.library.workspace import Workspace
from kvgraft.meter import Cost
from kvgraft.reuse import Keep

OWN = ""  # the name, in what was tried, of the workspace's own model


@dataclass(frozen=True)
class RungCost:
    """What one rung took, and how it ended. `confidence`: the share of its attempts that give the
    verified answer, or the most frequent one where none was verified; attempts that were cut off
    count, those that nobody waited for do not. None where no answer was found. `detail`: why the
    rung made fewer attempts than it says."""

    rung: str
    cost: Cost
    passed: bool
    confidence: float | None
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RungCost:
        return cls(**{**data, "cost": Cost(**data["cost"])})


@dataclass(frozen=True)
class Origin:
    """Who made an attempt (`OWN`, or a larger model's name), on which rung, from which seed."""

    model: str
    rung: str
    seed: int | None


@dataclass(frozen=True)
class Tried:
    """An attempt in the account of a climb, made on rung `number`. `line`: the place, among all
    that was tried, of the independent attempt that it is, or that it corrects. `feedback`: what its
    maker may be told; "" where nobody has judged it."""

    text: str
    finished: bool
    given_up: bool
    origin: Origin
    number: int
    line: int
    independent: bool
    feedback: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tried:
        return cls(**{**data, "origin": Origin(**data["origin"])})


@dataclass(frozen=True)
class Passed:
    """A verified trace, the case that it was judged on, and where it comes from."""

    trace: str
    verdict: Verdict
    case: Case
    origin: Origin


class Larger:
    """The larger models of a run: each is opened when a rung first needs it, and kept until the
    run ends, since loading one may take longer than all of its attempts."""

    def __init__(self, workspace: Workspace, open_engine: Callable[[str], Engine]) -> None:
        self._workspace = workspace
        self._open_engine = open_engine
        self._models: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """The model of that name.

        Raises:
            UnknownModel, UnreadableModel, UnsupportedModel, MissingExtra, DownloadFailed: an engine
                cannot be opened. UsageError: an endpoint that is none.
        """
        if name not in self._models:
            space = self._workspace
            self._models[name] = (
                EndpointModel(name)
                if is_endpoint(name)
                else LocalModel(self._open_engine(name), space.chunks, space.salt, space.load)
            )
        return self._models[name]

    def close(self) -> None:
        """Close them all. Idempotent."""
        while self._models:
            self._models.popitem()[1].close()


class Climb:
    """One problem on its way up. `rungs` and `tried` are the account; `earlier` is the account of
    a run that was interrupted, as `account` gave it: its finished rungs are not done again."""

    def __init__(
        self,
        workspace: Workspace,
        problem: Problem,
        verifier: Verifier,
        effort: Effort,
        larger: Larger,
        *,
        earlier: Mapping[str, Any] | None = None,
        on_step: Callable[[Problem, int, int], None] = lambda problem, step, running: None,
        on_rung: Callable[[Problem, int, Rung], None] = lambda problem, number, rung: None,
    ) -> None:
        self.rungs: list[RungCost] = []
        self.tried: list[Tried] = []
        self._workspace = workspace
        self._problem = problem
        self._verifier = verifier
        self._effort = effort
        self._larger = larger
        self._on_step = on_step
        self._on_rung = on_rung
        if earlier is not None:
            self._take_up(earlier)
        self._own = LocalModel(workspace.engine, workspace.chunks, workspace.salt, workspace.load)
        self._allowance = Allowance(effort.budget, spent=self.cost, meter=workspace.meter)

    @property
    def cost(self) -> Cost:
        """Of all rungs together."""
        return sum((rung.cost for rung in self.rungs), Cost.nothing())

    @property
    def ran_out(self) -> str:
        """What of the budget ended the climb, if it did."""
        return self._allowance.ran_out

    @property
    def account(self) -> dict[str, Any]:
        """Everything that another run needs to go on from here, as JSON."""
        return {
            "rungs": [rung.as_dict() for rung in self.rungs],
            "tried": [asdict(one) for one in self.tried],
        }

    def _take_up(self, earlier: Mapping[str, Any]) -> None:
        try:
            self.rungs = [RungCost.from_dict(rung) for rung in earlier["rungs"]]
            self.tried = [Tried.from_dict(one) for one in earlier["tried"]]
        except (KeyError, TypeError, ValueError):  # of another release: it is all done again
            self.rungs, self.tried = [], []

    def run(self, after_rung: Callable[[Climb], None] = lambda climb: None) -> Passed | None:
        """Climb until an attempt passes, the ladder ends, or the budget does. `after_rung` is
        called when a rung has failed and another one follows.

        Raises:
            VerifierError: the verifier cannot judge this problem at all.
            EndpointError: a model elsewhere fails; so may a larger one here (`Larger.get`).
        """
        ladder = self._effort.ladder
        for number in range(len(self.rungs), len(ladder)):
            if not self._allowance.allows():
                break
            self._on_rung(self._problem, number, ladder[number])
            if (passed := self._rung(number, ladder[number])) is not None:
                return passed
            if number + 1 < len(ladder) and not self.ran_out:
                after_rung(self)
        return None

    # --- one rung -----------------------------------------------------------------------------

    def _rung(self, number: int, rung: Rung) -> Passed | None:
        began, cost, passed, detail = len(self.tried), Cost.nothing(), None, ""
        to_correct = self._last_made() if rung.kind == CORRECT else []
        with Measure(self._workspace.meter) as measured:
            try:
                for turn in range(rung.rounds):
                    turn_began = len(self.tried)
                    chosen = _best(to_correct)
                    if rung.kind == CORRECT and chosen is None:
                        detail = "there is nothing to correct"
                        break
                    passed, spent = self._batch(number, rung, turn, chosen)
                    cost += spent
                    if passed is not None or not self._allowance.allows():
                        break
                    to_correct = self.tried[turn_began:]
            except (ContextTooLong, InputError) as error:  # what this rung asks cannot be posed
                detail = f"{error.code}: {error}"
        if self.ran_out:
            detail = f"budget: {self.ran_out}"
        share = confidence(self.tried[began:], passed.verdict.answer if passed else None)
        cost = measured.into(cost)
        if is_endpoint(rung.model):  # what was metered here is not what was spent there
            cost = replace(cost, cpu_seconds=None, joules=None, joules_from=None)
        self.rungs.append(RungCost(rung.spec, cost, passed is not None, share, detail))
        return passed

    def _batch(
        self, number: int, rung: Rung, turn: int, chosen: Tried | None
    ) -> tuple[Passed | None, Cost]:
        """One batch of attempts, judged; they are added to what was tried."""
        problem, effort = self._problem, self._effort
        seed = derived_seed(effort.sampling.seed, problem.system, problem.text, number, turn)
        sampling = effort.sampling_of(rung, seed)
        maker = chosen.origin.model if chosen is not None else rung.model
        verdicts: dict[int, Verdict] = {}

        def judge(lane: int, attempt: Attempt) -> bool:
            if self._together:
                return False
            verdicts[lane] = self._verifier.verify(problem.case(), attempt.text)
            return _passes(verdicts[lane])

        batch = self._model(maker).attempt(
            self._messages(chosen),
            rung.count or 1,
            sampling,
            effort.max_new_tokens,
            keep=self._keep(rung),
            allowance=self._allowance,
            on_finish=judge,
            on_step=lambda step, running: self._on_step(problem, step, running),
        )
        origin = Origin(maker, rung.spec, sampling.seed if sampling is not None else None)
        for lane, attempt in enumerate(batch.attempts):
            self.tried.append(
                Tried(
                    attempt.text,
                    attempt.finished,
                    attempt.given_up,
                    origin,
                    number,
                    line=len(self.tried) if chosen is None else chosen.line,
                    independent=chosen is None,
                    feedback=self._feedback(attempt, verdicts.get(lane)),
                )
            )
        for lane, verdict in verdicts.items():
            if _passes(verdict):
                trace = batch.attempts[lane].text
                return Passed(trace, verdict, problem.case(), origin), batch.cost
        return (self._judge_together() if self._together else None), batch.cost

    def _judge_together(self) -> Passed | None:
        """Judge what was not judged yet, each with its model's other attempts."""
        for number, one in enumerate(self.tried):
            if not one.finished or one.feedback:
                continue
            peers = self._peers(one)
            if not peers:  # a lone one waits for company
                continue
            case = self._problem.case(peers)
            verdict = self._verifier.verify(case, one.text)
            if _passes(verdict):
                return Passed(one.text, verdict, case, one.origin)
            said = feedback(self._problem, one.text, verdict)
            self.tried[number] = replace(one, feedback=said)
        return None

    def _peers(self, one: Tried) -> tuple[str, ...]:
        """Texts of the same model's other independent attempts; "" for one that came to no end,
        which is an attempt without an answer. A correction has seen its own first attempt and has
        that one's place, so it is nobody's peer and adds no voice."""
        others = (
            other
            for other in self.tried
            if other.independent
            and other.origin.model == one.origin.model
            and other.line != one.line
        )
        return tuple(other.text if other.finished else "" for other in others)

    def _feedback(self, attempt: Attempt, verdict: Verdict | None) -> str:
        """What the maker may be told; "" where nobody has judged a finished attempt."""
        if verdict is None and attempt.finished:
            return ""
        return feedback(self._problem, attempt.text, verdict)

    @property
    def _together(self) -> bool:
        return "peers" in self._verifier.needs

    def _last_made(self) -> list[Tried]:
        """The attempts of the last rung that made any."""
        return [one for one in self.tried if one.number == self.tried[-1].number]

    def _model(self, name: str) -> Model:
        return self._own if name == OWN else self._larger.get(name)

    def _messages(self, chosen: Tried | None) -> list[Message]:
        problem = self._problem
        messages = [Message("system", problem.system)] if problem.system is not None else []
        messages.append(Message("user", problem.text))
        if chosen is not None:
            messages.append(Message("assistant", chosen.text))
            messages.append(Message("user", chosen.feedback or NOT_CHECKED))
        return messages

    def _keep(self, rung: Rung) -> Keep:
        """A prompt that another rung will pose again is kept whole, so that it is computed once.
        The state after a failed attempt is not worth a file."""
        if rung.kind == CORRECT:
            return Keep.NOTHING
        posing = sum(other.kind in (GREEDY, SAMPLE) for other in self._effort.ladder)
        return Keep.ALL if rung.kind != LARGER and posing > 1 else Keep.BLOCKS


def _passes(verdict: Verdict) -> bool:
    return verdict.passed and verdict.answer is not None


def _best(tried: Sequence[Tried]) -> Tried | None:
    """Which failed attempt to correct: one that came to its end and has the answer that most have;
    of several the last one. None where there is none at all."""
    answers = [answer_of(one) for one in tried]
    counts = Counter(filter(None, answers))
    best: tuple[tuple[bool, int, int], Tried] | None = None
    for number, (one, answer) in enumerate(zip(tried, answers, strict=True)):
        rank = (one.finished, counts[answer] if answer else 0, number)
        if best is None or rank > best[0]:
            best = rank, one
    return best[1] if best else None


def confidence(tried: Sequence[Tried], answer: str | None) -> float | None:
    """See `RungCost`."""
    answers = [answer_of(one) for one in tried if not one.given_up]
    counts = Counter(filter(None, answers))
    if answer is not None:
        same = counts[canonical_answer(answer) or ""]
        # None: a verifier may find an answer where `extract` finds none.
        return same / len(answers) if same else None
    return max(counts.values()) / len(answers) if counts else None


def answer_of(tried: Tried) -> str | None:
    """The answer of a finished attempt in its canonical form; None where there is none."""
    found = extract(tried.text) if tried.finished else None
    return canonical_answer(found.answer) if found is not None else None
