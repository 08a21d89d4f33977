"""The effort ladder: which attempts are made at a problem, the cheap ones first, and within what.

A ladder is written as its rungs, `greedy + sample:8 + correct:2 + larger:demo:qwen-coder-1.5b`:

    greedy                     one attempt without chance
    sample[:K][@T[,P]]         K samples, at temperature T and nucleus P
    correct[:N[xK]][@T[,P]]    N rounds: a failed attempt and what was found wrong with it go back
                               to the model, for one greedy attempt or K samples
    larger:[K[@T[,P]]:]MODEL   another model, or http://HOST:PORT/v1#NAME; greedy, or K samples
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace

from kvgraft.decode import Sampling
from kvgraft.errors import LimitExceeded, UsageError
from kvgraft.library.attempts import check_attempts
from kvgraft.library.budget import Budget
from kvgraft.library.endpoint import check_endpoint, is_endpoint
from kvgraft.limits import MAX_CORRECTION_ROUNDS, MAX_RUNGS

GREEDY, SAMPLE, CORRECT, LARGER = "greedy", "sample", "correct", "larger"

# A plus inside a model's name is no joint: what follows a joint is a rung, or stands apart.
_JOINT = re.compile(r"\s+\+\s+|\+(?=(?:greedy|sample|correct|larger)(?:[:@+\s]|\Z))")
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_DRAW = rf"(?:@(?P<temperature>{_NUMBER})(?:,(?P<top_p>{_NUMBER}))?)?"
_COUNT = "(?P<count>[0-9]{1,9})"
_FORMS = (
    re.compile(r"(?P<kind>greedy)"),
    re.compile(rf"(?P<kind>sample)(?::{_COUNT})?{_DRAW}"),
    re.compile(rf"(?P<kind>correct)(?::(?P<rounds>[0-9]{{1,9}})(?:x{_COUNT})?)?{_DRAW}"),
    re.compile(rf"(?P<kind>larger):(?:{_COUNT}{_DRAW}:)?(?P<model>.*\S)"),
)


@dataclass(frozen=True)
class Rung:
    """One step of effort. `count` samples a batch, or, where it is None, one greedy attempt (for
    `sample`: as many as the effort says). `temperature` and `top_p` are the effort's unless given.
    `rounds` are those of `correct`; `model` is that of `larger`.

    Raises:
        UsageError: it is none.
        LimitExceeded: more rounds than `limits.MAX_CORRECTION_ROUNDS`.
        MissingExtra: `model` is an endpoint, and `httpx` is not installed.
    """

    kind: str
    count: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    rounds: int = 1
    model: str = ""

    def __post_init__(self) -> None:
        drawn = Sampling(
            1.0 if self.temperature is None else self.temperature,
            1.0 if self.top_p is None else self.top_p,
        )
        if self.count is not None:
            check_attempts(self.count, drawn, 1)
        if self.kind not in (GREEDY, SAMPLE, CORRECT, LARGER):
            raise UsageError(f"there is no rung {self.kind!r}")
        if bool(self.model.strip()) != (self.kind == LARGER):
            raise UsageError("a larger model has a name, and no other rung has one")
        if self.rounds < 1:
            raise UsageError("a correction has one round or more")
        if self.rounds > MAX_CORRECTION_ROUNDS:
            raise LimitExceeded(f"more than {MAX_CORRECTION_ROUNDS} rounds of correction")
        if self.kind != SAMPLE and self.count is None and self.temperature is not None:
            raise UsageError(
                f"{self.kind!r} without a count is greedy, and has no temperature",
                hint="say how many samples: correct:2x4@0.7",
            )
        if is_endpoint(self.model):
            check_endpoint(self.model)

    @property
    def spec(self) -> str:
        """What `parse_ladder` makes it from."""
        draw = ""
        if self.temperature is not None:
            draw = f"@{self.temperature:.9g}"
            draw += f",{self.top_p:.9g}" if self.top_p is not None else ""
        count = "" if self.count is None else str(self.count)
        if self.kind == LARGER:
            return f"{LARGER}:{count}{draw}:{self.model}" if count else f"{LARGER}:{self.model}"
        if self.kind == CORRECT:
            return f"{CORRECT}:{self.rounds}{'x' if count else ''}{count}{draw}"
        return f"{self.kind}{':' if count else ''}{count}{draw}"


def parse_ladder(text: str) -> tuple[Rung, ...]:
    """The rungs that `text` spells, in their order.

    Raises:
        UsageError: it spells something else.
        LimitExceeded: more than `limits.MAX_RUNGS` of them, or as `Rung`.
        MissingExtra: as `Rung`.
    """
    specs = _JOINT.split(text.strip())
    if len(specs) > MAX_RUNGS:
        raise LimitExceeded(f"more than {MAX_RUNGS} rungs", where=text[:100])
    return tuple(map(_parse, specs))


def _parse(spec: str) -> Rung:
    found = next(filter(None, (form.fullmatch(spec) for form in _FORMS)), None)
    if found is None:
        raise UsageError(
            f"there is no rung {spec[:100]!r}",
            hint="write greedy, sample:K, correct:ROUNDS or larger:MODEL, with + between them",
        )
    parts = found.groupdict()
    count, rounds = parts.get("count"), parts.get("rounds")
    temperature, top_p = parts.get("temperature"), parts.get("top_p")
    try:
        return Rung(
            parts["kind"],
            count=None if count is None else int(count),
            temperature=None if temperature is None else float(temperature),
            top_p=None if top_p is None else float(top_p),
            rounds=1 if rounds is None else int(rounds),
            model=parts.get("model") or "",
        )
    except UsageError as error:
        where = error.where or spec.partition("http")[0][:100]  # an address may hold a password
        raise UsageError(error.what, where=where, hint=error.hint) from error


@dataclass(frozen=True)
class Effort:
    """How hard a problem is tried. Attempts have at most `max_new_tokens` tokens each.

    `rungs` is a ladder, or its text; by default it is one rung of `attempts` samples, which is also
    what `sample` without a count stands for. `sampling` has the run's seed; what a rung draws
    from follows from it, the problem and the rung.

    Raises:
        UsageError, LimitExceeded, MissingExtra: as `check_attempts`, `parse_ladder` and `Rung`.
    """

    attempts: int = 8
    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    rungs: tuple[Rung, ...] | str = SAMPLE
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        check_attempts(self.attempts, self.sampling, self.max_new_tokens)
        rungs = parse_ladder(self.rungs) if isinstance(self.rungs, str) else self.rungs
        if not 1 <= len(rungs) <= MAX_RUNGS:
            raise LimitExceeded(f"a ladder has 1 to {MAX_RUNGS} rungs, not {len(rungs)}")
        if rungs[0].kind == CORRECT:
            raise UsageError("there is nothing to correct before the first attempt")
        object.__setattr__(self, "rungs", rungs)  # frozen; this is its constructor

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The rungs, with every count filled in."""
        assert not isinstance(self.rungs, str)
        return tuple(
            replace(rung, count=self.attempts)
            if rung.kind == SAMPLE and rung.count is None
            else rung
            for rung in self.rungs
        )

    @property
    def spec(self) -> str:
        """The ladder as text."""
        return " + ".join(rung.spec for rung in self.ladder)

    @property
    def comparable(self) -> int:
        """The most independent attempts that one model makes."""
        counts: dict[str, int] = {}
        for rung in self.ladder:
            if rung.kind != CORRECT:
                counts[rung.model] = counts.get(rung.model, 0) + (rung.count or 1)
        return max(counts.values())

    def sampling_of(self, rung: Rung, seed: int) -> Sampling | None:
        """What `rung` draws with from a stream of `seed`; None where it is greedy."""
        if rung.count is None:
            return None
        return Sampling(
            self.sampling.temperature if rung.temperature is None else rung.temperature,
            self.sampling.top_p if rung.top_p is None else rung.top_p,
            seed,
        )


def derived_seed(seed: int, *parts: str | int | None) -> int:
    """A seed of 64 bits for one part of a run: another one for each problem, rung and round, and
    the same one every time."""
    digest = hashlib.sha256(json.dumps([seed, *parts]).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "little")
