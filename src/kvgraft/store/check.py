"""Looking after a store: open it, check it, rebuild its index, count what is in it.

`check_store` reads every byte and writes nothing. `reindex` writes the index alone. No blob is
changed or deleted here: what is damaged stays for whoever wants to look at it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvgraft.blob.pack import PackEntry
from kvgraft.errors import StoreError, StoreFull, StoreReadOnly
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.local import LocalStore, store_error, write_whole
from kvgraft.store.scan import Problem, Progress, Scan

STORE_VERSION = 1
INDEX_NAME = "index.sqlite3"
MARK_NAME = "store.json"
_MARK_BYTES = 4096  # a mark is {"format": 1}; nothing longer is one


def _no_progress(done: int, total: int) -> None:
    """Nobody watches."""


# --- opening ----------------------------------------------------------------------------------


def open_local(root: Path) -> ChunkStore:
    """The store in a folder, made if it is not there.

    Raises:
        StoreReadOnly, StoreFull: the folder cannot be made or written.
        StoreError: it is of a newer release, or its index is damaged.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(error, root, "opening the store") from error
    _check_mark(root / MARK_NAME)
    blobs = LocalStore(root)
    try:
        return ChunkStore(blobs, Index(root / INDEX_NAME))
    except (StoreFull, StoreReadOnly):
        raise
    except StoreError as error:
        hint = f"if it is damaged, move {INDEX_NAME} away and run: kvgraft store reindex"
        raise StoreError(error.what, where=error.where, hint=error.hint or hint) from error


def _check_mark(path: Path) -> None:
    try:
        with path.open("rb") as file:
            text = file.read(_MARK_BYTES)
    except FileNotFoundError:
        write_whole(path, json.dumps({"format": STORE_VERSION}).encode() + b"\n")
        return
    except OSError as error:
        raise store_error(error, path, "opening the store") from error
    try:
        version = json.loads(text)["format"]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise StoreError(
            "the store's version is unreadable",
            where=str(path),
            hint=f'in a store of this release the file says {{"format": {STORE_VERSION}}}',
        ) from error
    if version != STORE_VERSION:
        raise StoreError(
            f"the store has format {version!r}, this release reads {STORE_VERSION}",
            where=str(path),
            hint="upgrade kvgraft, or name another store folder",
        )


# --- checking ---------------------------------------------------------------------------------


@dataclass
class CheckReport:
    """What `check_store` saw.

    `unlisted_objects` are sound, but no look-up finds them: a capture ended between publishing
    and listing, or the index is new. That loses time, not truth; `reindex` lists them.
    """

    packs: int = 0
    objects: int = 0
    fingerprints: int = 0
    size_bytes: int = 0
    unlisted_objects: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}


def check_store(chunks: ChunkStore, progress: Progress = _no_progress) -> CheckReport:
    """Read every blob and compare it with its digests, its name and the index. Writes nothing.

    Raises:
        StoreError: blobs cannot be listed, or the index cannot be read.
    """
    listed = chunks.index.packs().keys()  # first: what is listed later need not be in the scan
    scan = Scan(chunks.blobs, progress)
    report = CheckReport(size_bytes=scan.total_bytes, problems=scan.problems)
    known = set()
    for name in scan.fingerprints:
        if fingerprint := scan.fingerprint(name):
            known.add(fingerprint.digest)
            report.fingerprints += 1
    used = set()
    for name in scan.packs:
        entries: list[PackEntry] = []
        if read := scan.pack(name):
            entries = read[1]
            report.packs += 1
            report.objects += len(entries)
        used |= {entry.fingerprint for entry in entries}
        report.unlisted_objects += _compare_with_index(chunks.index, name, entries, scan)
    for name in sorted(listed - set(scan.packs)):
        scan.problem("index_missing_pack", name, "the index lists a pack that is not there")
    for digest in sorted(used - known):
        what = "no blob says what this fingerprint of stored objects is made of"
        scan.problem("fingerprint_missing", digest.hex(), what)
    return report


def _compare_with_index(index: Index, name: str, entries: list[PackEntry], scan: Scan) -> int:
    """Name what the index says otherwise of a pack; how many of its sound objects it omits."""
    unlisted = 0
    sound = set(entries)
    for entry in index.of_pack(name):
        if entry not in sound:
            what = f"the index lists {_named(entry)}, and no such sound object is there"
            scan.problem("index_other_place", f"{name}@{entry.offset}", what)
    for entry in entries:
        listed = index.find(entry.key).get(entry.role)
        if listed is None:
            unlisted += 1
        elif listed.object.raw_digest != entry.raw_digest:
            what = f"{_named(entry)} is stored with other bytes in {listed.pack}"
            scan.problem("drift", f"{name}@{entry.offset}", what)
    return unlisted


def _named(entry: PackEntry) -> str:
    return f"{entry.role.name.lower()} {entry.key.hex()}"


# --- rebuilding the index ---------------------------------------------------------------------


@dataclass
class ReindexReport:
    """What `reindex` listed; `problems` names what it left alone."""

    packs: int = 0
    objects: int = 0
    fingerprints: int = 0
    size_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}


def reindex(chunks: ChunkStore, progress: Progress = _no_progress) -> ReindexReport:
    """Build the index anew from the blobs, listing only what was read and found sound.

    Cut short, it leaves an index that lists less; run it again. Captures of other processes may
    go on meanwhile: what they publish after the start, they list themselves.

    Raises:
        StoreFull, StoreReadOnly, StoreError: the index cannot be written, or blobs not listed.
    """
    chunks.index.clear()  # before blobs are listed: a pack published in between is then listed too
    scan = Scan(chunks.blobs, progress)
    report = ReindexReport(size_bytes=scan.total_bytes, problems=scan.problems)
    for name in scan.fingerprints:
        if fingerprint := scan.fingerprint(name):
            chunks.index.note_fingerprint(fingerprint.digest, fingerprint.to_json())
            report.fingerprints += 1
    for name in scan.packs:
        read = scan.pack(name)
        if not read or not read[1]:
            continue
        size, entries = read
        for entry, stored in chunks.index.add_pack(name, size, entries):
            detail = f"stored {stored.hex()}, also in {name}: {entry.raw_digest.hex()}"
            chunks.index.alarm("drift", entry.key, entry.role, detail)
            scan.problem("drift", f"{name}@{entry.offset}", f"{_named(entry)}: {detail}")
        report.packs += 1
        report.objects += len(entries)
    return report


# --- counting ---------------------------------------------------------------------------------


def stats(chunks: ChunkStore) -> dict[str, object]:
    """Packs and their bytes, objects and their payload bytes by role and by fingerprint, and how
    many alarms there are: by the index alone, no pack is read.

    Raises:
        StoreError: the index cannot be read.
    """
    texts = chunks.index.fingerprints()
    roles = {role: {"objects": 0, "payload_bytes": 0} for role in Role}
    makers: dict[bytes, dict[str, int]] = {}
    for digest, role, objects, size in chunks.index.usage():
        for count in (roles[role], makers.setdefault(digest, {"objects": 0, "payload_bytes": 0})):
            count["objects"] += objects
            count["payload_bytes"] += size
    packs = chunks.index.packs()
    return {
        "packs": len(packs),
        "pack_bytes": sum(packs.values()),
        "objects": sum(count["objects"] for count in roles.values()),
        "roles": {role.name.lower(): count for role, count in roles.items()},
        "fingerprints": [
            {
                "digest": digest.hex(),
                "fields": json.loads(texts[digest]) if digest in texts else None,
                **count,
            }
            for digest, count in makers.items()
        ],
        "alarms": len(chunks.index.alarms()),
    }
