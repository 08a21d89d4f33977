"""How a deposit lies in a row of the library, and what of a row is believed.

A digest over the content is stored beside it and compared on every read, and the address is derived
from the identity again: a row that was damaged or edited is refused rather than answered from
(invariant I2).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from kvgraft import limits
from kvgraft.errors import InputError, KvgraftError, LimitExceeded, StoreError
from kvgraft.library import times
from kvgraft.library.address import RequestIdentity, address, digest_parts
from kvgraft.library.deposit import ACTIVE, EXPIRED, Deposit, Grounds, NewDeposit
from kvgraft.library.json_numbers import dumps, loads
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.plan import as_token_ids

# Columns of `deposits`, in the order in which their digest is taken, by content version.
_CONTENT_1 = (
    *("id", "address", "tenant", "problem", "system", "request", "model", "fingerprint"),
    *("prompt", "trace", "cue", "token_ids", "answer", "answer_ids"),
    *("verifier", "verifier_version", "grade", "evidence", "cost"),
    *("artifact", "parent", "source", "created_at"),
)
_NEW_IN_2 = ("verifier_spec", "grounds", "provenance", "origin")
_CONTENT = {1: _CONTENT_1, 2: (*_CONTENT_1, *_NEW_IN_2)}
CONTENT_VERSION = 2
STATE_COLUMNS = (
    *("replay", "replay_reason", "replay_logits_sha256"),
    *("status", "revoked_at", "revoke_reason", "expires_at", "verified_at"),
)
COLUMNS = (*_CONTENT[CONTENT_VERSION], "content_version", "content_digest", *STATE_COLUMNS)

# The parts of an identity that have a column of their own; `request` holds the others.
_IDENTITY_COLUMNS = ("tenant", "problem", "system", "parent")
# The columns that hold a field of the deposit as it is.
_PLAIN_COLUMNS = (
    *("model", "fingerprint", "prompt", "trace", "cue", "answer"),
    *("artifact", "source", "origin", "expires_at", "verified_at"),
    *("replay", "replay_reason", "replay_logits_sha256"),
)


def encode(new: NewDeposit) -> dict[str, Any]:
    """The columns of a new deposit, but for those that `seal` adds.

    Raises:
        InputError: token ids out of range, evidence, cost, provenance or grounds that are no JSON,
            a time that is none, text that cannot be encoded.
        LimitExceeded: evidence, cost, provenance or grounds are over their cap.
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
        "verifier_spec": new.grounds.spec if new.grounds else None,
        "grade": new.verdict.grade,
        "evidence": json_text("evidence", new.verdict.evidence, limits.MAX_EVIDENCE_CHARS),
        "cost": json_text("cost", new.cost, limits.MAX_LIBRARY_JSON_CHARS),
        "provenance": json_text("provenance", new.provenance, limits.MAX_LIBRARY_JSON_CHARS),
        "grounds": _grounds_bytes(new.grounds) if new.grounds else None,
        "content_version": CONTENT_VERSION,
        "status": ACTIVE,
        "revoked_at": None,
        "revoke_reason": None,
    }
    for name in ("expires_at", "verified_at"):
        row[name] = None if row[name] is None else times.as_utc(row[name])
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
        for name in ("cost", "provenance"):
            decoded[name] = json.loads(row[name])
        decoded["grounds"] = _grounds(row)
        decoded["verified_at"] = row["verified_at"] or row["created_at"]
        if row["status"] == ACTIVE and row["expires_at"] and row["expires_at"] <= times.now():
            decoded["status"] = EXPIRED
        return Deposit(identity=identity, verdict=_verdict(row), **decoded)
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error, KvgraftError) as error:
        raise StoreError(
            f"a record of the library is damaged: {error}",
            where=f"deposit {row['id']}",
            hint="revoke it and solve the problem again",
        ) from error


def _verdict(row: Mapping[str, Any]) -> Verdict:
    return Verdict(
        passed=True,  # nothing else is ever deposited
        grade=row["grade"],
        answer=row["answer"],
        verifier=row["verifier"],
        version=row["verifier_version"],
        evidence=json.loads(row["evidence"]),
    )


def _grounds_bytes(grounds: Grounds) -> bytes:
    case = grounds.case
    text = json_text(
        "what was judged",
        {
            "expected": case.expected,
            "checks": dict(case.checks),
            "peers": list(case.peers),
            "tail": grounds.tail,
            "restated": grounds.restated,
        },
        limits.MAX_GROUNDS_CHARS,
        sort_keys=False,  # a verifier sees the checks in the order in which they were given
    )
    data = zlib.compress(text.encode("ascii"))
    if len(data) > limits.MAX_GROUNDS_BYTES:
        raise LimitExceeded(
            f"what was judged takes over {limits.MAX_GROUNDS_BYTES:,} bytes, compressed",
            where=f"{len(case.peers)} other attempts, {len(text):,} characters in all",
            hint="compare fewer or shorter attempts; without them the verdict cannot be repeated",
        )
    return data


def _grounds(row: Mapping[str, Any]) -> Grounds | None:
    spec, data = row["verifier_spec"], row["grounds"]
    if data is None and spec is None:
        return None
    inflater = zlib.decompressobj()
    text = inflater.decompress(data, limits.MAX_GROUNDS_CHARS)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("what was judged is cut off, or too long")
    told = loads(text)
    case = Case(row["problem"], told["expected"], told["checks"], tuple(told["peers"]))
    return Grounds(spec, case, told["tail"], told["restated"])


def json_text(
    name: str, value: Mapping[str, Any], cap_chars: int | None, *, sort_keys: bool = True
) -> str:
    """`value` as compact JSON.

    Raises:
        InputError: not JSON (NaN and infinity are not).
        LimitExceeded: longer than `cap_chars` characters.
    """
    try:
        text = dumps(dict(value), sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
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
    version = row["content_version"]
    if version == 1 and (row["provenance"] != "{}" or any(row[name] for name in _UNKNOWN_TO_1)):
        raise ValueError("it says what its release did not write")
    return digest_parts(_tagged(row[column]) for column in _CONTENT[version])


_UNKNOWN_TO_1 = ("verifier_spec", "grounds", "origin")


def _tagged(value: str | bytes | None) -> bytes:
    if value is None:
        return b"\x00"
    if isinstance(value, str):
        return b"\x01" + value.encode("utf-8")
    return b"\x02" + value
