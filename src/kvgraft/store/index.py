"""Which object lies where: a SQLite index over packs, which can always be rebuilt from them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgraft.blob.pack import PackEntry
from kvgraft.errors import StoreError, UsageError
from kvgraft.limits import MAX_FIND_KEYS
from kvgraft.sqlite import naming_errors, open_database, transaction
from kvgraft.state import Role


@dataclass(frozen=True)
class IndexEntry:
    """An object, the pack that holds it, and that pack's size in bytes."""

    pack: str
    pack_bytes: int
    object: PackEntry


def _create(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE packs (name TEXT PRIMARY KEY, size_bytes INTEGER NOT NULL)")
    db.execute(
        "CREATE TABLE objects (key BLOB NOT NULL, role INTEGER NOT NULL, pack TEXT NOT NULL,"
        " raw_digest BLOB NOT NULL, fingerprint BLOB NOT NULL, offset INTEGER NOT NULL,"
        " stored_length INTEGER NOT NULL, start INTEGER NOT NULL, count INTEGER NOT NULL,"
        " rows INTEGER NOT NULL, PRIMARY KEY (key, role)) WITHOUT ROWID"
    )
    db.execute("CREATE INDEX objects_by_pack ON objects (pack)")
    db.execute("CREATE TABLE fingerprints (digest BLOB PRIMARY KEY, json TEXT NOT NULL)")
    db.execute(
        "CREATE TABLE alarms (at TEXT DEFAULT CURRENT_TIMESTAMP, kind TEXT NOT NULL,"
        " key BLOB NOT NULL, role INTEGER NOT NULL, detail TEXT NOT NULL)"
    )


def _add_rates(db: sqlite3.Connection) -> None:
    db.execute(
        "CREATE TABLE rates (fingerprint BLOB NOT NULL, machine TEXT NOT NULL, json TEXT NOT NULL,"
        " at TEXT DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (fingerprint, machine))"
    )


_SELECT = (
    "SELECT o.pack, p.size_bytes, o.key, o.raw_digest, o.fingerprint, o.offset, o.stored_length,"
    " o.start, o.count, o.rows, o.role FROM objects o JOIN packs p ON p.name = o.pack"
)


def _entry(row: Sequence[Any]) -> IndexEntry:
    return IndexEntry(row[0], row[1], PackEntry(*[*row[2:10], _role(row[10])]))


def _role(value: int) -> Role:
    try:
        return Role(value)
    except ValueError:
        raise StoreError(
            f"the index lists an object of role {value!r}", hint="rebuild it: store reindex"
        ) from None


class Index:
    """Thread-safe; several processes may share one file."""

    def __init__(self, path: Path | None) -> None:
        self._where = str(path) if path else ":memory:"
        self._db = open_database(path, (_create, _add_rates))
        self._lock = threading.Lock()

    def find(self, key: bytes) -> dict[Role, IndexEntry]:
        """The objects of a chunk, by role; empty where there are none."""
        with self._lock, naming_errors(self._where):
            rows = self._db.execute(f"{_SELECT} WHERE o.key=?", (key,)).fetchall()
        entries = [_entry(row) for row in rows]
        return {entry.object.role: entry for entry in entries}

    def find_many(self, keys: Sequence[bytes]) -> list[dict[Role, IndexEntry]]:
        """The objects of each chunk, by role, in the order of `keys`.

        Raises:
            UsageError: more than `MAX_FIND_KEYS` keys.
        """
        if len(keys) > MAX_FIND_KEYS:
            raise UsageError(f"{len(keys)} keys at once; at most {MAX_FIND_KEYS}")
        marks = ",".join("?" * len(keys))
        with self._lock, naming_errors(self._where):
            rows = self._db.execute(f"{_SELECT} WHERE o.key IN ({marks})", keys).fetchall()
        found: dict[bytes, dict[Role, IndexEntry]] = {key: {} for key in keys}
        for row in rows:
            entry = _entry(row)
            found[entry.object.key][entry.object.role] = entry
        return [found[key] for key in keys]

    def add_pack(
        self, name: str, size_bytes: int, entries: Sequence[PackEntry]
    ) -> list[tuple[PackEntry, bytes]]:
        """List a published pack. An object that is listed already keeps its place.

        Returns the objects that are listed with another raw digest, and that digest: drift.
        """
        rows = [
            (
                entry.key,
                entry.role.value,
                name,
                entry.raw_digest,
                entry.fingerprint,
                entry.offset,
                entry.stored_length,
                entry.start,
                entry.count,
                entry.rows,
            )
            for entry in entries
        ]
        with self._lock, naming_errors(self._where), transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO packs VALUES (?,?)", (name, size_bytes))
            self._db.executemany("INSERT OR IGNORE INTO objects VALUES (?,?,?,?,?,?,?,?,?,?)", rows)
            listed = [
                self._db.execute(
                    "SELECT raw_digest FROM objects WHERE key=? AND role=?",
                    (entry.key, entry.role.value),
                ).fetchone()[0]
                for entry in entries
            ]
        pairs = zip(entries, listed, strict=True)
        return [(entry, digest) for entry, digest in pairs if digest != entry.raw_digest]

    def remove(self, entry: IndexEntry) -> None:
        """Stop listing one object at that place (it was found damaged)."""
        with self._lock, naming_errors(self._where), transaction(self._db):
            self._db.execute(
                "DELETE FROM objects WHERE key=? AND role=? AND pack=?",
                (entry.object.key, entry.object.role.value, entry.pack),
            )

    def remove_pack(self, name: str) -> int:
        """Stop listing a pack and all that is listed in it; its size in bytes, 0 if unlisted."""
        with self._lock, naming_errors(self._where), transaction(self._db):
            row = self._db.execute("SELECT size_bytes FROM packs WHERE name=?", (name,)).fetchone()
            self._db.execute("DELETE FROM objects WHERE pack=?", (name,))
            self._db.execute("DELETE FROM packs WHERE name=?", (name,))
        return 0 if row is None else int(row[0])

    def alarm(self, kind: str, key: bytes, role: Role, detail: str) -> None:
        """Record something an operator must see: drift, damage."""
        with self._lock, naming_errors(self._where), transaction(self._db):
            self._db.execute(
                "INSERT INTO alarms (kind, key, role, detail) VALUES (?,?,?,?)",
                (kind, key, role.value, detail),
            )

    def alarms(self) -> list[dict[str, str]]:
        """All alarms, oldest first."""
        with self._lock, naming_errors(self._where):
            rows = self._db.execute(
                "SELECT at, kind, lower(hex(key)), role, detail FROM alarms ORDER BY rowid"
            ).fetchall()
        names = ("at", "kind", "key", "role", "detail")
        return [dict(zip(names, map(str, row), strict=True)) for row in rows]

    def note_fingerprint(self, digest: bytes, json_text: str) -> bool:
        """Remember what a digest stands for; True if it was new."""
        with self._lock, naming_errors(self._where):
            known = self._db.execute(
                "SELECT 1 FROM fingerprints WHERE digest=?", (digest,)
            ).fetchone()
            if known:
                return False
            with transaction(self._db):
                self._db.execute(
                    "INSERT OR IGNORE INTO fingerprints VALUES (?,?)", (digest, json_text)
                )
        return True

    def fingerprints(self) -> dict[bytes, str]:
        """Digest -> canonical JSON of every fingerprint that ever stored something here."""
        with self._lock, naming_errors(self._where):
            return dict(self._db.execute("SELECT digest, json FROM fingerprints").fetchall())

    def has_fingerprint(self, digest: bytes) -> bool:
        """Whether anything of this fingerprint was ever stored here."""
        with self._lock, naming_errors(self._where):
            row = self._db.execute("SELECT 1 FROM fingerprints WHERE digest=?", (digest,))
            return row.fetchone() is not None

    def rates(self, fingerprint: bytes, machine: str) -> str | None:
        """What loading and computing cost a model on a machine, as it was saved."""
        with self._lock, naming_errors(self._where):
            row = self._db.execute(
                "SELECT json FROM rates WHERE fingerprint=? AND machine=?", (fingerprint, machine)
            ).fetchone()
        return str(row[0]) if row else None

    def save_rates(self, fingerprint: bytes, machine: str, json_text: str) -> None:
        """Keep them for the next process; the last one to save counts."""
        with self._lock, naming_errors(self._where), transaction(self._db):
            self._db.execute(
                "INSERT OR REPLACE INTO rates (fingerprint, machine, json) VALUES (?,?,?)",
                (fingerprint, machine, json_text),
            )

    def all_entries(self) -> list[IndexEntry]:
        """Every listed object, by pack and offset."""
        with self._lock, naming_errors(self._where):
            rows = self._db.execute(f"{_SELECT} ORDER BY o.pack, o.offset").fetchall()
        return [_entry(row) for row in rows]

    def totals(self) -> dict[str, int]:
        """Packs, pack bytes, objects, and payload bytes by role."""
        with self._lock, naming_errors(self._where):
            packs, size = self._db.execute(
                "SELECT count(*), coalesce(sum(size_bytes), 0) FROM packs"
            ).fetchone()
            roles = self._db.execute(
                "SELECT role, count(*), sum(stored_length) FROM objects GROUP BY role"
            ).fetchall()
        out = {"packs": packs, "pack_bytes": size, "objects": sum(row[1] for row in roles)}
        for role in Role:
            out[f"{role.name.lower()}_bytes"] = sum(row[2] for row in roles if row[0] == role.value)
        return out

    def usage(self) -> list[tuple[bytes, Role, int, int]]:
        """Per fingerprint digest and role: objects, and their payload bytes."""
        with self._lock, naming_errors(self._where):
            rows = self._db.execute(
                "SELECT fingerprint, role, count(*), sum(stored_length) FROM objects"
                " GROUP BY fingerprint, role ORDER BY fingerprint, role"
            ).fetchall()
        return [(row[0], _role(row[1]), row[2], row[3]) for row in rows]

    def of_pack(self, name: str) -> list[PackEntry]:
        """The objects that are listed in a pack, by offset."""
        with self._lock, naming_errors(self._where):
            rows = self._db.execute(f"{_SELECT} WHERE o.pack=? ORDER BY o.offset", (name,))
            return [_entry(row).object for row in rows.fetchall()]

    def packs(self) -> dict[str, int]:
        """The listed packs' names and sizes in bytes."""
        with self._lock, naming_errors(self._where):
            return dict(self._db.execute("SELECT name, size_bytes FROM packs").fetchall())

    def clear(self) -> None:
        """Forget everything that can be rebuilt; alarms stay."""
        with self._lock, naming_errors(self._where), transaction(self._db):
            for table in ("objects", "packs", "fingerprints"):
                self._db.execute(f"DELETE FROM {table}")

    def close(self) -> None:
        """Idempotent."""
        self._db.close()
