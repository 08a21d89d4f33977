"""Fingerprint: everything that changes the bytes of a state for given token ids.

Names and paths never enter it; contents do. Two fingerprints are compared field by field, so
that a refusal can say what differs.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kvgraft.errors import UnreadableModel, UsageError

_CONTEXT = "kvgraft 2026-11 v1 fingerprint"
_SLICE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Fingerprint:
    """Ordered `(field, value)` pairs and their digest.

    Fields in use: `engine`, `engine_version`, `weights`, `config`, `adapters`, `dtype`,
    `kv_dtype`, `attention`, `device`, `threads`, `plan`.
    """

    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Fingerprint:
        """Build from a mapping; order does not matter."""
        return cls(tuple(sorted(fields.items())))

    @classmethod
    def from_json(cls, text: str) -> Fingerprint:
        """Inverse of `to_json`.

        Raises:
            UsageError: not an object of strings.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"a fingerprint is not JSON: {error}") from error
        if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
            raise UsageError("a fingerprint is a JSON object of strings")
        return cls.of(data)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no white space."""
        return json.dumps(dict(self.fields), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> bytes:
        """BLAKE3, 32 bytes."""
        return blake3(self.to_json().encode(), derive_key_context=_CONTEXT).digest()

    @property
    def hex(self) -> str:
        return self.digest.hex()

    def differing(self, other: Fingerprint) -> tuple[str, ...]:
        """The names of the fields that differ, sorted."""
        mine, theirs = dict(self.fields), dict(other.fields)
        names = mine.keys() | theirs.keys()
        return tuple(sorted(name for name in names if mine.get(name) != theirs.get(name)))


def digest_json(value: object) -> str:
    """Hex BLAKE3 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return blake3(text.encode()).hexdigest()


def cpu_class(variables: Iterable[str] = ()) -> str:
    """The instruction sets kernels may choose from, and which of `variables` narrow them.

    `variables` are the environment variables by which a user changes the choice of an engine's
    kernels.

    Two machines of one class give the same bits as far as was measured; another class is
    another fingerprint.
    """
    flags: list[str] = []
    vendor = platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "vendor_id":
            vendor = f"{platform.machine()}/{value.strip()}"
        elif name.strip() in ("flags", "Features"):
            families = ("avx", "fma", "amx", "sse4", "f16c", "sve", "asimd", "bf16", "i8mm")
            flags = sorted({flag for flag in value.split() if flag.startswith(families)})
            break
    narrowed = [f"{name}={os.environ[name]}" for name in variables if name in os.environ]
    return "/".join([vendor, *flags, *narrowed])


class WeightsDigests:
    """Digests of weight files, remembered by path, size, mtime and inode.

    The memory is only a short cut: `paranoid=True` reads every byte again.
    """

    def __init__(self, database: Path, *, paranoid: bool = False) -> None:
        self._database = database
        self._paranoid = paranoid

    def of_files(
        self,
        files: Iterable[Path],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> str:
        """Hex digest over the contents of `files` in the order of their names.

        Names themselves do not enter it. `progress(done_bytes, total_bytes)` follows reading.

        Raises:
            UnreadableModel: no files, or one cannot be read.
        """
        ordered = sorted(files, key=lambda path: path.name)
        if not ordered:
            raise UnreadableModel("there are no weight files", hint="expected *.safetensors")
        try:
            total = sum(path.stat().st_size for path in ordered)
            digests = []
            done = 0
            for path in ordered:
                digests.append(self._of_file(path, done, total, progress))
                done += path.stat().st_size
        except OSError as error:
            raise UnreadableModel(
                f"cannot read weights: {error.strerror}", where=str(error.filename)
            ) from error
        return blake3("".join(digests).encode()).hexdigest()

    def _of_file(
        self, path: Path, done: int, total: int, progress: Callable[[int, int], None]
    ) -> str:
        stat = path.stat()
        identity = (str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if not self._paranoid and (known := self._recall(identity)):
            return known
        hasher = blake3(max_threads=blake3.AUTO)
        buffer = bytearray(_SLICE_BYTES)
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                hasher.update(memoryview(buffer)[:got])
                done += got
                progress(done, total)
        digest = hasher.hexdigest()
        self._remember(identity, digest)
        return digest

    def _recall(self, identity: tuple[str, int, int, int]) -> str | None:
        try:
            with closing(self._connect()) as db:
                row = db.execute(
                    "SELECT digest FROM weights WHERE path=? AND size=? AND mtime=? AND inode=?",
                    identity,
                ).fetchone()
        except (sqlite3.Error, OSError):
            return None  # a damaged or unwritable memory costs one more reading, nothing else
        return str(row[0]) if row else None

    def _remember(self, identity: tuple[str, int, int, int], digest: str) -> None:
        try:
            with closing(self._connect()) as db, db:
                db.execute("INSERT OR REPLACE INTO weights VALUES (?,?,?,?,?)", (*identity, digest))
        except (sqlite3.Error, OSError):
            return

    def _connect(self) -> sqlite3.Connection:
        self._database.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._database, timeout=10)
        db.execute(
            "CREATE TABLE IF NOT EXISTS weights (path TEXT PRIMARY KEY, size INTEGER,"
            " mtime INTEGER, inode INTEGER, digest TEXT)"
        )
        return db
