"""What a step of a study works with: one model, its stores in the run folder, and its results."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgraft.api import LIBRARY_NAME
from kvgraft.breakeven import Load
from kvgraft.decode import Sampling
from kvgraft.energy import EnergyMeter
from kvgraft.engines.base import Engine, Message
from kvgraft.library.answer import Answer
from kvgraft.library.attempts import Model
from kvgraft.library.budget import Budget
from kvgraft.library.ladder import Effort, derived_seed
from kvgraft.library.problem import Problem
from kvgraft.library.records import Library
from kvgraft.library.workspace import PUBLIC, Workspace
from kvgraft.store.check import open_local
from kvgraft.store.local import store_error
from kvgraft.store.tenants import TenantSalts
from kvgraft.study.items import Item
from kvgraft.study.journal import Journal, Row
from kvgraft.study.protocol import ModelSpec, Protocol
from kvgraft.study.registration import Registration

RESULTS, STORES = "results", "stores"
MAIN = "library"  # the store that deposits are made in
OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Bench:
    """`model` writes attempts; `engine` is None where it is behind an endpoint. `follow(words,
    done, total)` is told how far a step is."""

    protocol: Protocol
    registration: Registration
    spec: ModelSpec
    items: tuple[Item, ...]
    folder: Path
    model: Model
    engine: Engine | None
    meter: EnergyMeter
    follow: OnStep = lambda words, done, total: None

    def journal(self, step: str) -> Journal:
        """The results of a step. Raises: as `Journal`."""
        return open_journal(self.folder, self.spec.label, step, self.registration)

    def store(self, name: str) -> Path:
        """A store's folder in the run folder; it need not be there."""
        return self.folder / STORES / f"{self.spec.label}.{name}"

    @contextmanager
    def workspace(self, name: str, load: Load = Load.ALWAYS) -> Iterator[Workspace]:
        """The engine over one of the run's stores, made where it is not there.

        States are always loaded: what a study shows must not hang on a measurement of speed.
        """
        assert self.engine is not None
        root = self.store(name)
        chunks = open_local(root)
        try:
            with Library.open(root / LIBRARY_NAME) as library:
                salt = TenantSalts(root / "tenants.json").salt(PUBLIC)
                yield Workspace(
                    self.engine, chunks, library, PUBLIC, salt, load=load, meter=self.meter
                )
        finally:
            chunks.close()

    def effort(self, step: str) -> Effort:
        """The effort of solving, with a seed of its own for each step."""
        solve = self.protocol.solve
        sampling = Sampling(
            solve.temperature, solve.top_p, derived_seed(self.protocol.seed, self.spec.label, step)
        )
        budget = Budget(tokens=solve.budget_tokens, seconds=solve.budget_seconds)
        return Effort(solve.attempts, solve.max_new_tokens, sampling, solve.ladder, budget)

    def controlled(self, items: Iterable[Item]) -> list[Item]:
        """Those of `items` that controls run on: by the seed, as many as the protocol says."""
        given = list(items)
        chosen = sorted(given, key=lambda item: _rank(self.protocol.seed, item.id))
        ids = {item.id for item in chosen[: self.protocol.control_problems]}
        return [item for item in given if item.id in ids]


def open_journal(folder: Path, label: str, step: str, registration: Registration) -> Journal:
    """The results of a step of a model. Raises: as `Journal`."""
    results = folder / RESULTS
    try:
        results.mkdir(exist_ok=True)
    except OSError as error:
        raise store_error(error, results, "making the results' folder") from error
    return Journal(results, f"{label}.{step}", registration.hash)


def messages(problem: Problem) -> list[Message]:
    """The turns that pose a problem."""
    system = [] if problem.system is None else [Message("system", problem.system)]
    return [*system, Message("user", problem.text)]


def each(
    bench: Bench, journal: Journal, items: Iterable[Item], make: Callable[[Item], Mapping[str, Any]]
) -> None:
    """A row for each item that has none yet, kept as it comes. A row begins with its id and group;
    `make` gives the rest."""
    todo = list(items)
    done = {row["id"] for row in journal.rows}
    for number, item in enumerate(todo, 1):
        if item.id not in done:
            journal.append({"id": item.id, "group": item.group, **make(item)})
        bench.follow(journal.name, number, len(todo))


def answer_row(answer: Answer) -> Row:
    """What is kept of an answer."""
    return {
        "how": answer.how,
        "grade": answer.grade,
        "answer": answer.answer if answer.finished else None,
        "text": answer.text,
        "finished": answer.finished,
        "exact": answer.exact,
        "deposit_id": answer.deposit_id,
        "context": list(answer.context),
        "logits_sha256": answer.logits_sha256,
        "reasons": list(answer.reasons),
        "cost": answer.cost.as_dict(),
    }


def copy_store(source: Path, target: Path, *, with_library: bool) -> None:
    """Copy a closed store, whole or not at all. Blobs, which are never changed in place, are linked
    where the system can; the related problems' index is left out, since it belongs to a library.

    Raises:
        StoreError: it cannot be copied.
    """
    if target.exists():
        return
    draft = target.with_name(f".{target.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                relative = path.relative_to(source)
                _copy(path, draft / relative, relative.parts[0] == "blobs", with_library)
        draft.rename(target)
    except (OSError, sqlite3.Error) as error:
        cause = error if isinstance(error, OSError) else OSError(str(error))
        raise store_error(cause, target, "copying a store") from error


def _copy(path: Path, target: Path, is_blob: bool, with_library: bool) -> None:
    name = path.name
    if name.endswith(("-wal", "-shm", ".lock")) or name.startswith("related."):
        return
    if name == LIBRARY_NAME and not with_library:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".sqlite3":
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
    elif is_blob:
        try:
            os.link(path, target)
        except OSError:
            shutil.copy2(path, target)
    else:
        shutil.copy2(path, target)


def _rank(seed: int, id: str) -> bytes:
    return hashlib.sha256(f"control\0{seed}\0{id}".encode("utf-8", "surrogatepass")).digest()
