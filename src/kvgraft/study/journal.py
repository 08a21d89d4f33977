"""Results as they come: a line of JSON each, durable before the next begins; compressed at the end.

While a step runs its rows lie in `NAME.jsonl`; a half-written last line, which a kill may leave,
is dropped. When the step ends, `NAME.jsonl.gz` takes its place. The first line of either names the
registration.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvgraft.errors import CheckFailed, InputError
from kvgraft.store.local import store_error, sync_folder, write_whole
from kvgraft.study.registration import canonical_json

Row = dict[str, Any]
FORMAT = "kvgraft-study-results-1"


class Journal:
    """The rows of one step of one run. `head` is the line before them.

    Raises:
        CheckFailed: the rows there are of another registration.
        InputError: what is there are no rows.
        StoreError: the file cannot be read or written.
    """

    def __init__(self, folder: Path, name: str, registration: str) -> None:
        self.name = name
        self._plain = folder / f"{name}.jsonl"
        self._packed = folder / f"{name}.jsonl.gz"
        self.head = {"format": FORMAT, "step": name, "registration": registration}
        self.finished = self._packed.exists()
        self.rows = self._read()

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row; it is durable when this returns."""
        assert not self.finished
        line = canonical_json(row) + "\n"
        try:
            new = not self._plain.exists()
            with self._plain.open("a", encoding="utf-8") as file:
                if new:
                    file.write(canonical_json(self.head) + "\n")
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self._plain.parent)
        except OSError as error:
            raise store_error(error, self._plain, "keeping a result") from error
        self.rows.append(json.loads(line))

    def finish(self) -> None:
        """Say that all rows are there."""
        if self.finished:
            return
        lines = [canonical_json(self.head), *map(canonical_json, self.rows)]
        write_whole(
            self._packed, gzip.compress("".join(f"{one}\n" for one in lines).encode(), mtime=0)
        )
        self.finished = True
        self._drop_plain()

    def _drop_plain(self) -> None:
        try:
            self._plain.unlink(missing_ok=True)
        except OSError as error:
            raise store_error(error, self._plain, "packing results") from error

    def _read(self) -> list[Row]:
        path = self._packed if self.finished else self._plain
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if self.finished else data).decode("utf-8")
        except FileNotFoundError:
            return []
        except (EOFError, ValueError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"these results are damaged: {error}", where=str(path)) from error
        except OSError as error:
            raise store_error(error, path, "reading results") from error
        if self.finished:
            self._drop_plain()  # a kill may have left both
        elif not text.endswith("\n"):
            text = self._without_torn_line(text)
        return self._parsed(text, path)

    def _without_torn_line(self, text: str) -> str:
        whole = text[: text.rfind("\n") + 1]
        try:
            if not whole:
                self._plain.unlink()
            else:
                with self._plain.open("r+b") as file:
                    file.truncate(len(whole.encode()))
        except OSError as error:
            raise store_error(error, self._plain, "mending results") from error
        return whole

    def _parsed(self, text: str, path: Path) -> list[Row]:
        try:
            lines = [json.loads(line) for line in text.splitlines()]
            if not all(isinstance(line, dict) for line in lines):
                raise ValueError("a line is not an object")
        except (ValueError, RecursionError) as error:
            raise InputError(f"these results are damaged: {error}", where=str(path)) from error
        if not lines:
            return []
        if lines[0] != self.head:
            raise CheckFailed("these results are of another study", where=str(path))
        return lines[1:]
