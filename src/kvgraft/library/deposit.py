"""What a deposit is, and what is refused as one.

A deposit's content never changes once it is written. What may change is its state: whether it
replays, until when it holds, when it was verified last, and whether it was revoked or superseded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgraft import limits
from kvgraft.errors import DepositExpired, DepositRevoked, InputError, LimitExceeded
from kvgraft.library import times
from kvgraft.library.address import RequestIdentity
from kvgraft.library.verify.base import Case, Verdict

ACTIVE, EXPIRED, REVOKED, SUPERSEDED = "active", "expired", "revoked", "superseded"
REPLAYS, TEXT_ONLY = "replays", "text_only"
NOT_REPLAYED = "not replayed yet"
_CUTS = "cuts"


@dataclass(frozen=True)
class Grounds:
    """What a verdict was given on, so that it can be given again.

    `spec` is what `make_verifier` takes. `case` is what the verifier saw beside the trace, of the
    problem that was solved. It saw the deposit's trace with the white space `tail` behind it; and,
    where the deposit replays, the text `restated` as well: what the model says from the deposited
    state (see `replay.restatement`).
    """

    spec: str
    case: Case
    tail: str = ""
    restated: str | None = None


@dataclass(frozen=True, kw_only=True)
class DepositContent:
    """What new and stored deposits have in common.

    `prompt`, `trace` and `cue` are rendered text; in this order they are the text of `token_ids`,
    the deposited prefix, which ends just before the answer. `artifact` is the key of its last
    chunk in hex, `None` where no state is kept. `cost` is a JSON object; the unit stands last in
    each of its names, and what was not measured is `None`, not 0.

    `grounds` is None where what was judged is not known: in deposits of schema version 1.
    `provenance` is a JSON object: who wrote the trace, with which seed and effort. `origin`: the
    deposit of whose solution this one is a copy, with a state made for another fingerprint. From
    `expires_at` on (None: never) it is not found.
    """

    identity: RequestIdentity
    model: str
    fingerprint: str
    prompt: str
    trace: str
    cue: str
    token_ids: tuple[int, ...]
    answer: str
    answer_ids: tuple[int, ...]
    verdict: Verdict
    cost: Mapping[str, Any]
    grounds: Grounds | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    artifact: str | None = None
    source: str = "solve"
    origin: str | None = None
    expires_at: str | None = None
    replay: str = TEXT_ONLY
    replay_reason: str = NOT_REPLAYED
    replay_logits_sha256: str | None = None

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    @property
    def problem(self) -> str:
        """In canonical form."""
        return self.identity.problem

    @property
    def system(self) -> str | None:
        """In canonical form."""
        return self.identity.system

    @property
    def parent(self) -> str | None:
        """The deposit that this one follows up."""
        return self.identity.parent

    @property
    def cuts(self) -> tuple[int, ...]:
        """The lengths in tokens at which calls of its plan end early."""
        return tuple(self.provenance.get(_CUTS, ()))


def with_cuts(provenance: Mapping[str, Any], cuts: Sequence[int]) -> dict[str, Any]:
    """A provenance with the cuts of the deposit's plan, if it has any."""
    return {**provenance, _CUTS: list(cuts)} if cuts else dict(provenance)


@dataclass(frozen=True, kw_only=True)
class NewDeposit(DepositContent):
    """A candidate. `finished` says that its generation came to an end by itself. `verified_at`:
    when the verdict was given, where that is not now."""

    finished: bool
    verified_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Deposit(DepositContent):
    """A stored deposit. Times are UTC, ISO 8601, in microseconds.

    `status` is as of when it was read: active, expired, revoked or superseded. `verified_at`: when
    its verifier passed it last.
    """

    id: str
    address: bytes
    created_at: str
    verified_at: str
    status: str
    revoked_at: str | None = None
    revoke_reason: str | None = None


@dataclass(frozen=True)
class AuditEvent:
    """Something that happened to a deposit: `deposit`, `replay`, `replay_failed`, `revoke`,
    `supersede`, `reverify`, `rebuild` or `expire`."""

    seq: int
    at: str
    event: str
    deposit: str
    detail: Mapping[str, Any]


def check_trusted(deposit: Deposit) -> Deposit:
    """The deposit, if something may still rest on it. One that was superseded was right.

    Raises:
        DepositRevoked, DepositExpired: nothing may.
    """
    if deposit.status == REVOKED:
        raise DepositRevoked(
            f"the deposit was revoked: {deposit.revoke_reason}",
            where=deposit.id,
            hint="solve the problem again, and follow up that deposit",
        )
    if deposit.expires_at is not None and deposit.expires_at <= times.now():
        raise DepositExpired(
            f"the deposit held until {deposit.expires_at}",
            where=deposit.id,
            hint="solve the problem again, or let it hold longer ('kvgraft library expire')",
        )
    return deposit


def check_new(new: NewDeposit) -> None:
    """Refuse what must not be kept (invariant I5).

    Raises:
        InputError: a verdict that did not pass or judged another answer or problem, an unfinished
            generation, an empty problem or answer, a replay state that contradicts the rest.
        LimitExceeded: a text is over its cap.
    """
    where = f"problem {new.problem[:60]!r}"
    if not new.verdict.passed:
        raise InputError("a deposit needs a verdict that passed", where=where)
    if not new.finished:
        raise InputError("an incomplete generation is never deposited", where=where)
    if not new.problem or not new.answer.strip():
        raise InputError("a deposit needs a problem and an answer", where=where)
    if new.verdict.answer != new.answer:
        raise InputError("the verdict is about another answer", where=where)
    if new.grounds is not None and new.grounds.case.problem != new.problem:
        raise InputError("the verdict is about another problem", where=where)
    if not new.verdict.verifier or not new.model or not new.fingerprint:
        raise InputError("verifier, model and fingerprint need a name", where=where)
    if new.replay not in (REPLAYS, TEXT_ONLY):
        raise InputError(f"replay state {new.replay!r} is unknown", where=where)
    check_replay(new, new.replay == REPLAYS, new.replay_reason, new.replay_logits_sha256)
    if not _are_cuts(new.provenance.get(_CUTS, []), len(new.token_ids)):
        raise InputError("cuts are lengths within the tokens", where=where)
    short = limits.MAX_LIBRARY_NAME_CHARS
    for name, text, cap_chars in (
        ("prompt", new.prompt, limits.MAX_PROMPT_BYTES),
        ("trace", new.trace, limits.MAX_TRACE_CHARS),
        ("answer", new.answer, limits.MAX_ANSWER_CHARS),
        ("cue", new.cue, short),
        ("model", new.model, short),
        ("fingerprint", new.fingerprint, short),
        ("source", new.source, short),
        ("spec", new.grounds.spec if new.grounds else "", limits.MAX_VERIFIER_SPEC_CHARS),
    ):
        if len(text) > cap_chars:
            raise LimitExceeded(f"{name} is longer than {cap_chars:,} characters", where=where)


def _are_cuts(value: object, tokens: int) -> bool:
    return isinstance(value, list) and all(type(cut) is int and 0 < cut <= tokens for cut in value)


def check_replay(
    content: DepositContent, replays: bool, reason: str, logits_sha256: str | None
) -> None:
    """Refuse a replay state that says more than was shown.

    Raises:
        InputError: it replays, but there is no artifact, no digest of the logits, or no answer
            token; or it does not, and no reason says why.
    """
    shown = content.artifact and content.answer_ids and logits_sha256
    if replays and not shown:
        raise InputError("a replay needs an artifact, answer tokens and the digest of its logits")
    if not replays and not reason:
        raise InputError("a deposit that does not replay says why")
