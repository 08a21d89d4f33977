"""Runs: how far a resumable job got with each of its problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgraft import limits
from kvgraft.errors import InputError, LimitExceeded
from kvgraft.library import times
from kvgraft.library.connection import LibraryFile
from kvgraft.library.rows import json_object, json_text


@dataclass(frozen=True)
class Run:
    """How far a resumable job got with one problem. `state` is the job's own word."""

    run_key: str
    problem_key: str
    state: str
    attempts_done: int
    updated_at: str
    detail: Mapping[str, Any]


class Runs(LibraryFile):
    """What a library remembers of resumable jobs."""

    def run_get(self, run_key: str, problem_key: str) -> Run | None:
        """How far the run got with the problem, or `None` where it has not begun."""
        found = self._runs("WHERE run_key = ? AND problem_key = ?", run_key, problem_key)
        return found[0] if found else None

    def run_list(self, run_key: str) -> tuple[Run, ...]:
        """All problems that the run has begun, by problem key."""
        return self._runs("WHERE run_key = ? ORDER BY problem_key", run_key)

    def run_put(
        self,
        run_key: str,
        problem_key: str,
        *,
        state: str,
        attempts_done: int,
        detail: Mapping[str, Any] | None = None,
    ) -> Run:
        """Write down how far a run got with a problem, in place of what was written before.

        Raises:
            InputError: an empty key or state, a negative count, a detail that is no JSON object.
            LimitExceeded: a key or the detail is over its cap.
        """
        if not run_key or not problem_key or not state or not 0 <= attempts_done < 2**63:
            raise InputError("a run needs its keys, a state and a count of attempts")
        if max(map(len, (run_key, problem_key, state))) > limits.MAX_LIBRARY_NAME_CHARS:
            raise LimitExceeded(f"keys end at {limits.MAX_LIBRARY_NAME_CHARS} characters")
        text = json_text("detail", detail or {}, limits.MAX_LIBRARY_JSON_CHARS)
        row = (run_key, problem_key, state, attempts_done, times.now(), text)
        with self._writing():
            self._connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
        return Run(*row[:-1], json_object(text))

    def _runs(self, where: str, *values: str) -> tuple[Run, ...]:
        columns = "run_key, problem_key, state, attempts_done, updated_at, detail"
        rows = self._rows(f"SELECT {columns} FROM runs {where}", *values)
        return tuple(
            Run(run, problem, state, done, at, json_object(detail))
            for run, problem, state, done, at, detail in rows
        )
