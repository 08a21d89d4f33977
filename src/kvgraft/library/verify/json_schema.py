"""The verifier `schema`: the JSON in a trace is valid by a JSON schema."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

from kvgraft import limits
from kvgraft.errors import MissingExtra, VerifierError
from kvgraft.library.json_numbers import dumps
from kvgraft.library.verify.base import Case, Verdict, summary, without_answer
from kvgraft.library.verify.program_text import fenced_blocks
from kvgraft.library.verify.worker import Worker


class SchemaVerifier:
    """Passes a trace whose JSON is valid by `checks["schema"]`.

    The JSON is the last block fenced as `json`, else the last fenced block that is JSON, else the
    whole text; it is the answer, as it was written. Validation runs in a worker process under
    limits, since patterns of a schema can take for ever; references to other documents are never
    fetched. What is proved is the form, and nothing of the content.

    Raises:
        MissingExtra: `jsonschema` is not installed.
    """

    name = spec = "schema"
    needs = frozenset({"schema"})

    def __init__(
        self,
        *,
        seconds: float = limits.SCHEMA_SECONDS,
        memory_bytes: int = limits.MATH_VERIFY_MEMORY_BYTES,
    ) -> None:
        if importlib.util.find_spec("jsonschema") is None:
            raise MissingExtra(
                "the verifier 'schema' needs the package jsonschema",
                hint="pip install 'kvgraft[schema]'",
            )
        self.version = f"1+jsonschema-{importlib.metadata.version('jsonschema')}"
        self._worker = Worker(
            "kvgraft.library.verify.json_schema_check:load",
            seconds=seconds,
            memory_bytes=memory_bytes,
        )

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`.

        Raises:
            VerifierError: the case has no schema, or it is none.
        """
        schema = case.checks.get("schema")
        if not isinstance(schema, (dict, bool)):
            raise VerifierError(
                "the verifier 'schema' needs `checks.schema`, a JSON schema",
                where=self.name,
                hint='"checks": {"schema": {"type": "object"}}',
            )
        evidence: dict[str, Any] = {"method": "schema", "schema": summary(dumps(schema))}
        text = json_in(trace)
        if text is None:
            return without_answer(self, trace, evidence)
        if len(text) > limits.MAX_ANSWER_CHARS:
            evidence["reason"] = f"the JSON is over {limits.MAX_ANSWER_CHARS:,} characters"
            return Verdict(False, "none", None, self.name, self.version, evidence)
        reply = self._worker.ask({"schema": schema, "text": text})
        evidence |= {"seconds": round(reply.seconds, 6), "given": summary(text)}
        if reply.failure is not None:
            evidence["failure"] = summary(reply.failure)
            return Verdict(False, "none", text, self.name, self.version, evidence)
        if (bad := reply.value.get("bad_schema")) is not None:
            raise VerifierError(f"`checks.schema` is no JSON schema: {bad}", where=self.name)
        if (reason := reply.value["reason"]) is not None:
            evidence["reason"] = summary(reason)
        passed = reason is None
        return Verdict(passed, "proved", text, self.name, self.version, evidence)

    def close(self) -> None:
        """Ends the worker process."""
        self._worker.close()


def json_in(trace: str) -> str | None:
    """The JSON text in a trace, without white space at its ends; None where there is none.

    NaN and infinity, which Python reads, are no JSON; nor is an object that gives a name twice,
    which readers understand differently.
    """
    if len(trace) > limits.MAX_TRACE_CHARS:
        return None
    return next(filter(_is_json, _candidates(trace)), None)


def _candidates(trace: str) -> Iterator[str]:
    blocks = [block for block in fenced_blocks(trace) if block.closed]
    said = [block for block in blocks if block.tag == "json"]
    for block in reversed(said or blocks):
        yield trace[block.start : block.end].strip()
        if said:  # a block that says it is JSON is meant: no other is taken for it
            return
    yield trace.strip()


def _is_json(text: str) -> bool:
    try:
        json.loads(
            text,
            parse_constant=_refuse,
            parse_int=str,
            parse_float=str,
            object_pairs_hook=_without_repeats,
        )
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return data
