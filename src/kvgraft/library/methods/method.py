"""A method: programs for a family of problems, where they were verified, and on what.

And how it lies in two tables: content as JSON, with a digest over every column of it, compared on
every read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgraft.errors import KvgraftError, StoreError
from kvgraft.library.address import digest_parts
from kvgraft.library.methods import answers, domain, skeleton
from kvgraft.library.methods.answers import AnswerForm
from kvgraft.library.methods.checker import Checker
from kvgraft.library.methods.domain import Domain
from kvgraft.library.methods.skeleton import Skeleton
from kvgraft.library.methods.trial import Binding, Instance
from kvgraft.library.rows import json_object, json_text
from kvgraft.limits import MAX_METHOD_ROW_CHARS

ACTIVE, REVOKED = "active", "revoked"
# The columns that the digest of a row is over, in this order; the digest is the next one.
METHOD_COLUMNS = ("id", "tenant", "model", "created_at", "content")
EVIDENCE_COLUMNS = ("id", "method", "shape", "created_at", "content")


@dataclass(frozen=True)
class NewEvidence:
    """Verified problems of one phrasing. `bindings`: the ways to fill the parameters from its
    slots that agree with all of them; `domain` is of the parameters, not of the slots."""

    skeleton: Skeleton
    bindings: tuple[Binding, ...]
    domain: Domain
    instances: tuple[Instance, ...]


@dataclass(frozen=True)
class Evidence(NewEvidence):
    """As it is kept."""

    id: str
    created_at: str

    @property
    def deposits(self) -> tuple[str, ...]:
        return tuple(one.deposit for one in self.instances if one.deposit is not None)


@dataclass(frozen=True)
class NewMethod:
    """`programs` are sources, of which all must agree; `cost` is that of writing them, `detail`
    says how they came about (seeds, attempts)."""

    tenant: str
    model: str
    types: tuple[str, ...]
    form: AnswerForm
    programs: tuple[str, ...]
    checker: Checker | None
    grade: str
    cost: Mapping[str, Any]
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Method(NewMethod):
    """As it is kept. The first evidence is what its programs were written from."""

    id: str
    created_at: str
    status: str
    revoked_at: str | None
    revoke_reason: str | None
    evidence: tuple[Evidence, ...]


def method_content(new: NewMethod, first: str) -> str:
    """The column `content` of a method; `first` is the id of its first evidence.

    Raises:
        LimitExceeded: over the cap of a row.
    """
    return _json(
        {
            "first": first,
            "types": list(new.types),
            "form": answers.as_json(new.form),
            "programs": list(new.programs),
            "checker": None if new.checker is None else new.checker.as_json(),
            "grade": new.grade,
            "cost": dict(new.cost),
            "detail": dict(new.detail),
        }
    )


def evidence_content(new: NewEvidence) -> str:
    """The column `content` of evidence.

    Raises:
        LimitExceeded: over the cap of a row.
    """
    return _json(
        {
            "skeleton": new.skeleton.as_json(),
            "bindings": [list(order) for order in new.bindings],
            "domain": new.domain.as_json(),
            "instances": [[i.text, i.answer, i.grade, i.deposit] for i in new.instances],
        }
    )


def read_method(row: Sequence[Any], evidence: Sequence[Sequence[Any]]) -> Method:
    """The method in a row (`METHOD_COLUMNS`, digest, status, revoked_at, revoke_reason), with its
    rows of evidence (`EVIDENCE_COLUMNS`, digest).

    Raises:
        StoreError: these are not what was written.
    """
    id, tenant, model, created_at, content, digest, status, revoked_at, reason = row
    try:
        if row_digest(row[:5]) != digest or not evidence:
            raise ValueError("it is not what was written")
        data = json_object(content)
        if data["first"] != evidence[0][0]:
            raise ValueError("what it was written from is not there")
        checker = data["checker"]
        return Method(
            tenant,
            model,
            tuple(data["types"]),
            answers.from_json(data["form"]),
            tuple(data["programs"]),
            None if checker is None else Checker(checker["spec"], checker["checks"]),
            data["grade"],
            data["cost"],
            data["detail"],
            id,
            created_at,
            status,
            revoked_at,
            reason,
            tuple(map(_read_evidence, evidence)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, KvgraftError) as error:
        raise StoreError(
            f"a method is damaged: {error}",
            where=f"method {id}",
            hint="revoke it and learn it again",
        ) from error


def _read_evidence(row: Sequence[Any]) -> Evidence:
    id, _, shape, created_at, content, digest = row
    if row_digest(row[:5]) != digest:
        raise ValueError("its evidence is not what was written")
    data = json_object(content)
    found = skeleton.from_json(data["skeleton"])
    if found.shape != shape:
        raise ValueError("its evidence has another shape")
    return Evidence(
        found,
        tuple(tuple(order) for order in data["bindings"]),
        domain.from_json(data["domain"]),
        tuple(Instance(*fields) for fields in data["instances"]),
        id,
        created_at,
    )


def row_digest(row: Sequence[Any]) -> str:
    """Of the columns of a row."""
    return digest_parts(str(value).encode("utf-8", "surrogatepass") for value in row)


def _json(value: Mapping[str, Any]) -> str:
    return json_text("a method", value, MAX_METHOD_ROW_CHARS)
