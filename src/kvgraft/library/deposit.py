"""The library's records: their fields, what is refused, and how a deposit lies in a row.

A deposit's content never changes once it is written. A digest over it is stored beside it and
compared on every read, and the address is derived from the identity again: a row that was damaged
or edited is refused rather than answered from (invariant I2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kvgraft import limits
from kvgraft.errors import InputError, KvgraftError, LimitExceeded, StoreError
from kvgraft.library.address import RequestIdentity, address, digest_parts
from kvgraft.library.verify.base import Verdict
from kvgraft.plan import as_token_ids

ACTIVE, REVOKED, SUPERSEDED = "active", "revoked", "superseded"
REPLAYS, TEXT_ONLY = "replays", "text_only"
NOT_REPLAYED = "not replayed yet"

# Columns of `deposits`, in the order in which their digest is taken.
CONTENT_COLUMNS = (
    *("id", "address", "tenant", "problem", "system", "request", "model", "fingerprint"),
    *("prompt", "trace", "cue", "token_ids", "answer", "answer_ids"),
    *("verifier", "verifier_version", "grade", "evidence", "cost"),
    *("artifact", "parent", "source", "created_at"),
)
STATE_COLUMNS = (
    *("replay", "replay_reason", "replay_logits_sha256"),
    *("status", "revoked_at", "revoke_reason"),
)
COLUMNS = (*CONTENT_COLUMNS, "content_digest", *STATE_COLUMNS)

# The parts of an identity that have a column of their own; `request` holds the others.
_IDENTITY_COLUMNS = ("tenant", "problem", "system", "parent")
# The columns that hold a field of the deposit as it is.
_PLAIN_COLUMNS = (
    *("model", "fingerprint", "prompt", "trace", "cue", "answer"),
    *("artifact", "source"),
    *("replay", "replay_reason", "replay_logits_sha256"),
)


@dataclass(frozen=True, kw_only=True)
class DepositContent:
    """What new and stored deposits have in common.

    `prompt`, `trace` and `cue` are rendered text; in this order they are the text of `token_ids`,
    the deposited prefix, which ends just before the answer. `artifact` is the key of its last
    chunk in hex, `None` where no state is kept. `cost` is a JSON object; the unit stands last in
    each of its names, and what was not measured is `None`, not 0.
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
    artifact: str | None = None
    source: str = "solve"
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


@dataclass(frozen=True, kw_only=True)
class NewDeposit(DepositContent):
    """A candidate. `finished` says that its generation came to an end by itself."""

    finished: bool


@dataclass(frozen=True, kw_only=True)
class Deposit(DepositContent):
    """A stored deposit. Times are UTC, ISO 8601, in microseconds."""

    id: str
    address: bytes
    created_at: str
    status: str
    revoked_at: str | None = None
    revoke_reason: str | None = None


@dataclass(frozen=True)
class AuditEvent:
    """Something that happened to a deposit: `deposit`, `replay`, `revoke` or `supersede`."""

    seq: int
    at: str
    event: str
    deposit: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """How far a resumable job got with one problem. `state` is the job's own word."""

    run_key: str
    problem_key: str
    state: str
    attempts_done: int
    updated_at: str
    detail: Mapping[str, Any]


def check_new(new: NewDeposit) -> None:
    """Refuse what must not be kept (invariant I5).

    Raises:
        InputError: a verdict that did not pass or judged another answer, an unfinished
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
    if not new.verdict.verifier or not new.model or not new.fingerprint:
        raise InputError("verifier, model and fingerprint need a name", where=where)
    if new.replay not in (REPLAYS, TEXT_ONLY):
        raise InputError(f"replay state {new.replay!r} is unknown", where=where)
    check_replay(new, new.replay == REPLAYS, new.replay_reason, new.replay_logits_sha256)
    short = limits.MAX_LIBRARY_NAME_CHARS
    for name, text, cap_chars in (
        ("prompt", new.prompt, limits.MAX_PROMPT_BYTES),
        ("trace", new.trace, limits.MAX_TRACE_CHARS),
        ("answer", new.answer, limits.MAX_ANSWER_CHARS),
        ("cue", new.cue, short),
        ("model", new.model, short),
        ("fingerprint", new.fingerprint, short),
        ("source", new.source, short),
    ):
        if len(text) > cap_chars:
            raise LimitExceeded(f"{name} is longer than {cap_chars:,} characters", where=where)


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


def encode(new: NewDeposit) -> dict[str, Any]:
    """The columns of a new deposit, but for those that `seal` adds.

    Raises:
        InputError: token ids out of range, evidence or cost that is no JSON object, text that
            cannot be encoded.
        LimitExceeded: evidence or cost is over its cap.
    """
    identity = new.identity
    request = {name: getattr(identity, name) for name in _request_fields()}
    row: dict[str, Any] = {
        **{name: getattr(new, name) for name in _PLAIN_COLUMNS},
        **{name: getattr(identity, name) for name in _IDENTITY_COLUMNS},
        "address": address(identity),
        # Every field of an identity is capped when it is made.
        "request": json_text("request", request, cap_chars=None),
        "token_ids": as_token_ids(new.token_ids).tobytes(),
        "answer_ids": as_token_ids(new.answer_ids).tobytes(),
        "verifier": new.verdict.verifier,
        "verifier_version": new.verdict.version,
        "grade": new.verdict.grade,
        "evidence": json_text("evidence", new.verdict.evidence, limits.MAX_EVIDENCE_CHARS),
        "cost": json_text("cost", new.cost, limits.MAX_LIBRARY_JSON_CHARS),
        "status": ACTIVE,
        "revoked_at": None,
        "revoke_reason": None,
    }
    for name, value in row.items():
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                raise InputError(f"{name} holds a lone surrogate", where="new deposit") from None
    return row


def seal(row: Mapping[str, Any], *, id: str, created_at: str) -> tuple[Any, ...]:
    """The values of `COLUMNS`: `row` as `encode` made it, named, dated and digested."""
    whole = {**row, "id": id, "created_at": created_at}
    whole["content_digest"] = _content_digest(whole)
    return tuple(whole[name] for name in COLUMNS)


def from_row(values: Sequence[Any]) -> Deposit:
    """The deposit in the values of `COLUMNS`, with its digest and its address checked.

    Raises:
        StoreError: the row is not what was written.
    """
    row = dict(zip(COLUMNS, values, strict=True))
    try:
        if _content_digest(row) != row["content_digest"]:
            raise ValueError("its content has another digest")
        request = json.loads(row["request"])
        request["stop"] = tuple(request["stop"])
        request["extra"] = tuple((name, value) for name, value in request["extra"])
        identity = RequestIdentity(**{name: row[name] for name in _IDENTITY_COLUMNS}, **request)
        if address(identity) != row["address"]:
            raise ValueError("its address is not that of its request")
        own = {field.name for field in fields(Deposit)} & set(COLUMNS)
        decoded: dict[str, Any] = {name: row[name] for name in own}
        for name in ("token_ids", "answer_ids"):
            decoded[name] = tuple(np.frombuffer(row[name], dtype="<u4").tolist())
        decoded["cost"] = json.loads(row["cost"])
        verdict = Verdict(
            passed=True,  # nothing else is ever deposited
            grade=row["grade"],
            answer=row["answer"],
            verifier=row["verifier"],
            version=row["verifier_version"],
            evidence=json.loads(row["evidence"]),
        )
        return Deposit(identity=identity, verdict=verdict, **decoded)
    except (ValueError, TypeError, KeyError, AttributeError, KvgraftError) as error:
        raise StoreError(
            f"a record of the library is damaged: {error}",
            where=f"deposit {row['id']}",
            hint="revoke it and solve the problem again",
        ) from error


def json_text(name: str, value: Mapping[str, Any], cap_chars: int | None) -> str:
    """`value` as compact JSON with sorted keys.

    Raises:
        InputError: not JSON (NaN and infinity are not).
        LimitExceeded: longer than `cap_chars` characters.
    """
    try:
        text = json.dumps(dict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is not a JSON object: {error}") from error
    if cap_chars is not None and len(text) > cap_chars:
        raise LimitExceeded(f"{name} is longer than {cap_chars:,} characters of JSON")
    return text


def json_object(text: str) -> dict[str, Any]:
    """Inverse of `json_text`.

    Raises:
        StoreError: the text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StoreError(f"a detail in the library is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StoreError("a detail in the library is not a JSON object")
    return value


def _request_fields() -> tuple[str, ...]:
    names = (field.name for field in fields(RequestIdentity))
    return tuple(name for name in names if name not in _IDENTITY_COLUMNS)


def _content_digest(row: Mapping[str, Any]) -> str:
    return digest_parts(_tagged(row[column]) for column in CONTENT_COLUMNS)


def _tagged(value: str | bytes | None) -> bytes:
    if value is None:
        return b"\x00"
    if isinstance(value, str):
        return b"\x01" + value.encode("utf-8")
    return b"\x02" + value
