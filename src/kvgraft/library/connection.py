"""The library's open file, and the frame around every statement on it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvgraft import limits
from kvgraft.errors import StoreReadOnly
from kvgraft.library import schema
from kvgraft.library.rows import json_object, json_text
from kvgraft.sqlite import transaction


class LibraryFile:
    """One open file. Threads may share it; a forked child opens its own."""

    def __init__(self, connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
        """Use `Library.open`."""
        self.path = path
        self.read_only = read_only
        self._connection = connection
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make all writes of the block durable together, in one go, or none of them.

        Other processes see nothing of it, and cannot write, until it ends.
        """
        with self._writing():
            yield

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock, schema.typed_errors(self.path):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self.read_only:
            raise StoreReadOnly("the library was opened for reading only", where=str(self.path))
        with self._guarded(), transaction(self._connection):
            yield

    def _rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a question, so that its statement ends and holds no old snapshot."""
        with self._guarded():
            return self._connection.execute(sql, values).fetchall()

    def _log(self, now: str, event: str, id: str, detail: Mapping[str, Any]) -> None:
        text = json_text("detail", detail, limits.MAX_LIBRARY_JSON_CHARS)
        self._connection.execute(
            "INSERT INTO audit (at, event, deposit, detail) VALUES (?, ?, ?, ?)",
            (now, event, id, text),
        )

    def _log_once(self, now: str, event: str, id: str, detail: Mapping[str, Any]) -> None:
        """As `_log`, unless the deposit's last event said the same: what happens at every request
        must not fill the disk."""
        last = self._rows(
            "SELECT event, detail FROM audit WHERE deposit = ? ORDER BY seq DESC LIMIT 1", id
        )
        if not last or last[0][0] != event or json_object(last[0][1]) != dict(detail):
            self._log(now, event, id, detail)
