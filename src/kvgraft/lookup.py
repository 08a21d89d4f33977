"""The longest prefix of a plan that is stored and can be resumed, by the index alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from kvgraft.blob.payload import ChunkPlace
from kvgraft.engines.base import Engine
from kvgraft.errors import UsageError
from kvgraft.identity import Fingerprint
from kvgraft.limits import MAX_FIND_KEYS
from kvgraft.plan import Call, TokenIds
from kvgraft.points import seen_calls
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import IndexEntry


@dataclass(frozen=True)
class Planned:
    """A prompt's token ids, its calls, and the keys of what they leave behind."""

    ids: TokenIds
    calls: tuple[Call, ...]
    keys: tuple[bytes, ...]

    def end(self, done: int) -> int:
        """Tokens after the first `done` calls."""
        return self.calls[done - 1].end if done else 0

    def place(self, number: int) -> ChunkPlace:
        call = self.calls[number]
        return ChunkPlace(call.start, call.count, call.rows)

    def tokens(self, number: int) -> TokenIds:
        return self.ids[self.calls[number].start : self.calls[number].end]


# Of each call that is stored: its objects.
Found = list[dict[Role, IndexEntry]]


def find(engine: Engine, store: ChunkStore, planned: Planned, limit: int) -> Found:
    """The stored chunks among the first `limit`, up to the first that is missing, by the index
    alone."""
    found: Found = []
    for start in range(0, limit, MAX_FIND_KEYS):
        for objects in store.find_many(planned.keys[start : min(limit, start + MAX_FIND_KEYS)]):
            # The key stands for the fingerprint already; a broken hash must not make that a guess.
            mine = {
                role: entry
                for role, entry in objects.items()
                if entry.object.fingerprint == engine.fingerprint.digest
            }
            if Role.KEEP not in mine:
                return found
            found.append(mine)
    return found


def resumable(engine: Engine, planned: Planned, found: Found) -> int:
    """The most calls of `found` after which a run can go on."""
    return next(
        (done for done in range(len(found), 0, -1) if not _lacking(engine, planned, found, done)),
        0,
    )


def _lacking(engine: Engine, planned: Planned, found: Found, done: int) -> Role | None:
    """What is not stored that a run needs to go on after `done` calls, or None."""
    last = done == len(planned.calls)
    if (last or Role.END in engine.spec.resumes_with) and Role.END not in found[done - 1]:
        return Role.END
    seen = seen_calls(engine.spec, planned.calls, done)
    return Role.NEAR if any(Role.NEAR not in found[number] for number in seen) else None


def reasons(
    engine: Engine, store: ChunkStore, planned: Planned, found: Found, done: int, limit: int
) -> list[str]:
    """Why not more than `done` of `limit` calls can be restored."""
    why = []
    if len(found) < limit:
        why.append(_why_absent(store, engine.fingerprint, len(found)))
    if done < len(found):
        absent = _lacking(engine, planned, found, len(found))
        tokens = planned.end(len(found))
        if absent is Role.NEAR:
            why.append(f"no_window: windows at {tokens} tokens are not stored")
        elif len(found) < len(planned.calls):
            why.append(f"no_state: recurrent states at {tokens} tokens are not stored")
        else:
            # The next-token logits need the end point, so the last call is made again.
            why.append("no_end_point: the last call is computed for its logits")
    return why


def _why_absent(store: ChunkStore, fingerprint: Fingerprint, found: int) -> str:
    if found or store.index.has_fingerprint(fingerprint.digest):
        return f"not_stored: no chunk after {found} calls"
    differing = []
    for text in store.index.fingerprints().values():
        with contextlib.suppress(UsageError):  # a damaged text explains nothing
            differing.append(fingerprint.differing(Fingerprint.from_json(text)))
    # Other weights alone are the same model trained on; with more beside them, another model.
    mine = [fields for fields in differing if "weights" not in fields or len(fields) == 1]
    if mine:
        return "fingerprint: " + ", ".join(sorted(mine, key=len)[0]) + " differ"
    return "not_stored: nothing from this model"


def wanted_objects(engine: Engine, planned: Planned, done: int) -> list[tuple[int, Role]]:
    """The objects that a run needs to go on after `done` calls."""
    objects = [(number, Role.KEEP) for number in range(done)]
    objects += [(number, Role.NEAR) for number in seen_calls(engine.spec, planned.calls, done)]
    if done == len(planned.calls) or Role.END in engine.spec.resumes_with:
        objects.append((done - 1, Role.END))
    return objects
