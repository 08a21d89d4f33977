"""The Python API: a handful of names that do what the command line does.

import kvgraft

with kvgraft.open("demo:smollm2", store="my-store") as memory:  # a folder
    problem = kvgraft.Problem("1", "What is 7 + 5?", expected="12")
    memory.solve(problem, verifier="math", effort=kvgraft.Effort(16))
    answer = memory.ask("What is 7 + 5?")
    print(answer.how, repr(answer.text), answer.exact, answer.cost.decode_tokens)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType

from kvgraft.breakeven import Load
from kvgraft.context.about import collection_path
from kvgraft.context.chat import Chat
from kvgraft.context.collection import Collection
from kvgraft.context.embed import Embedder
from kvgraft.context.ingest import about_for
from kvgraft.context.question import PAGE, Reply, ask_collection
from kvgraft.context.space import Space
from kvgraft.energy import EnergyMeter
from kvgraft.engines.base import Engine, Message
from kvgraft.engines.modelcache import Progress, Say
from kvgraft.engines.registry import TRANSFORMERS, open_engine
from kvgraft.errors import UsageError
from kvgraft.library.answer import Answer
from kvgraft.library.ask import Terms
from kvgraft.library.ask import ask as ask_problem
from kvgraft.library.followup import FollowUp, follow_up
from kvgraft.library.ladder import Effort, Rung
from kvgraft.library.problem import Problem
from kvgraft.library.records import Library
from kvgraft.library.solve import Outcome, solve_all
from kvgraft.library.transfer import Transfer
from kvgraft.library.verify.base import Verifier
from kvgraft.library.verify.specs import make_verifier
from kvgraft.library.workspace import PUBLIC, Workspace
from kvgraft.reuse import Computed, Keep, compute_prompt
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.tenants import TenantSalts

LIBRARY_NAME = "library.sqlite3"  # inside a store's folder


def default_store() -> Path:
    """`$KVGRAFT_STORE`, else `kvgraft` in the user's XDG data folder."""
    if named := os.environ.get("KVGRAFT_STORE"):
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "kvgraft"


def open_library(store: Path, *, read_only: bool = False) -> Library:
    """The library of a store folder.

    Raises:
        StoreReadOnly, StoreFull, StoreError: it cannot be opened.
    """
    return Library.open(store / LIBRARY_NAME, read_only=read_only)


class Memory:
    """One engine over one store folder, for one tenant. Made by `kvgraft.open`."""

    def __init__(
        self,
        engine: Engine,
        chunks: ChunkStore,
        library: Library,
        tenant: str,
        salt: bytes,
        load: Load = Load.MEASURED,
        meter: EnergyMeter | None = None,
        open_larger: Callable[[str], Engine] = open_engine,
        folder: Path | None = None,
    ):
        self.engine = engine
        self.chunks = chunks
        self.library = library
        self.folder = folder
        self._workspace = Workspace(engine, chunks, library, tenant, salt, load, meter)
        self._open_larger = open_larger

    @property
    def workspace(self) -> Workspace:
        """What the library's functions take."""
        return self._workspace

    def ask(
        self,
        problem: str | Problem,
        *,
        system: str | None = None,
        verifier: str | Verifier | None = None,
        max_new_tokens: int = 256,
        minimum: str = "any",
        terms: Terms | None = None,
        transfer: Transfer | None = None,
        keep: bool = False,
    ) -> Answer:
        """Replay the deposit at the problem's exact address, or make a new attempt; with
        `transfer`, one with related solutions in context. See `kvgraft.library.ask`.

        Raises:
            UsageError: a `system` text beside a `Problem`, which has its own; options that do not
                go together.
            InputError, ContextTooLong: the problem cannot be posed to this model.
            BelowMinimum: no answer is as good as `minimum`: "replayed", "proved" or "agreed".
        """
        if isinstance(problem, str):
            problem = Problem("", problem, system=system)
        elif system is not None:
            raise UsageError("a Problem has its own system text", hint="give it there")
        with _opened(verifier) as judge:
            return ask_problem(
                self._workspace,
                problem,
                verifier=judge,
                max_new_tokens=max_new_tokens,
                minimum=minimum,
                terms=terms,
                transfer=transfer,
                keep=keep,
            )

    def follow_up(
        self,
        deposit_id: str,
        question: str | Problem,
        *,
        verifier: str | Verifier | None = None,
        max_new_tokens: int = 256,
        minimum: str = "any",
        keep: bool = False,
        compare: bool = False,
    ) -> FollowUp:
        """Ask a question behind a deposit, from its grafted state. See `kvgraft.library.followup`.

        Raises:
            RecordNotFound, DepositRevoked, DepositExpired: there is no such deposit to go on from.
            UsageError, InputError, ContextTooLong, BelowMinimum: as `ask`.
        """
        if isinstance(question, str):
            question = Problem("", question)
        with _opened(verifier) as judge:
            return follow_up(
                self._workspace,
                deposit_id,
                question,
                verifier=judge,
                max_new_tokens=max_new_tokens,
                minimum=minimum,
                keep=keep,
                compare=compare,
            )

    def solve_all(
        self,
        problems: Iterable[Problem],
        *,
        verifier: str | Verifier,
        effort: Effort | None = None,
        on_step: Callable[[Problem, int, int], None] = lambda problem, step, running: None,
        on_rung: Callable[[Problem, int, Rung], None] = lambda problem, number, rung: None,
        expires_at: str | None = None,
    ) -> Iterator[Outcome]:
        """Try problems as hard as `effort` says, verify, deposit the first pass of each. Resumable.

        Larger models are opened as this one was: same engine, dtype, device and threads. New
        deposits hold until `expires_at` (a date or time, ISO 8601), if that is given.

        Raises:
            VerifierError: the verifier cannot judge these problems.
            UsageError: as `kvgraft.library.solve.check_effort`.
            EndpointError, or an error of opening a model: a larger model fails.
            StoreError: the library cannot be written.
        """
        with _opened(verifier) as judge:
            assert judge is not None
            yield from solve_all(
                self._workspace,
                problems,
                judge,
                effort or Effort(),
                on_step,
                on_rung=on_rung,
                open_larger=self._open_larger,
                expires_at=expires_at,
            )

    def solve(
        self, problem: Problem, *, verifier: str | Verifier, effort: Effort | None = None
    ) -> Outcome:
        """`solve_all` for one problem."""
        return next(iter(self.solve_all([problem], verifier=verifier, effort=effort)))

    def chat(self, *, system: str | None = None, history: Sequence[Message] = ()) -> Chat:
        """A conversation over this memory; `history` resumes one. Close it when done."""
        space = self._workspace
        return Chat(
            self.engine, self.chunks, space.salt, system=system, history=history, load=space.load
        )

    @property
    def space(self) -> Space:
        """What `kvgraft.context` takes."""
        mine = self._workspace
        return Space(mine.engine, mine.chunks, mine.tenant, mine.salt, mine.load, mine.meter)

    def collection(
        self, name: str, *, page_tokens: int | None = None, embedder: Embedder | None = None
    ) -> Collection:
        """A collection of this store; with `page_tokens`, made where there is none. Close it when
        done. A new one that has an `embedder` is searched by meaning too.

        Raises:
            RecordNotFound: there is none, and none was to be made.
            UsageError: it was made for another model, for pages of another size, or otherwise.
            StoreError: it cannot be used.
        """
        if self.folder is None:
            raise UsageError("a memory without a folder keeps no collections")
        path = collection_path(self.folder, self._workspace.tenant, name)
        if page_tokens is not None:
            return Collection.create(path, about_for(self.space, name, page_tokens, embedder))
        opened = Collection.open(path, name=name)
        try:
            opened.about.check_engine(self.engine)
        except BaseException:
            opened.close()
            raise
        return opened

    def ask_collection(
        self,
        collection: Collection,
        question: str,
        *,
        way: str = PAGE,
        pages: int = 1,
        max_new_tokens: int = 64,
        embedder: Embedder | None = None,
        anyway: bool = False,
    ) -> Reply:
        """Answer a question from a collection's pages. See `kvgraft.context.question`.

        Raises:
            UsageError, InputError, ContextTooLong: the question cannot be put.
            StoreError: the collection is damaged.
        """
        return ask_collection(
            self.space,
            collection,
            question,
            way=way,
            pages=pages,
            max_new_tokens=max_new_tokens,
            embedder=embedder,
            anyway=anyway,
        )

    def compute(
        self,
        ids: Sequence[int],
        *,
        cuts: Sequence[int] = (),
        keep: Keep = Keep.BLOCKS,
        room: int = 0,
    ) -> Computed:
        """The state after token ids, reusing what is stored; close its context when done. `cuts`:
        where other prompts will go on, which is part of the request.

        Raises:
            InputError, ContextTooLong, UsageError: as `kvgraft.reuse.compute_prompt`.
        """
        return compute_prompt(
            self.engine,
            self.chunks,
            ids,
            salt=self._workspace.salt,
            keep=keep,
            cuts=cuts,
            load=self._workspace.load,
            room=room,
        )

    def close(self) -> None:
        """Close engine, store and library. Idempotent."""
        self.engine.close()
        self.chunks.close()
        self.library.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_memory(
    model: str,
    *,
    store: str | Path | None = None,
    tenant: str = PUBLIC,
    engine: str = TRANSFORMERS,
    dtype: str = "bfloat16",
    device: str = "cpu",
    threads: int | None = None,
    paranoid: bool = False,
    load: str = Load.MEASURED.value,
    watts: float | None = None,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> Memory:
    """Open a model with its memory; `kvgraft.open` is this function.

    `store` is a folder (default: `default_store()`). Tenants do not see each other's states or
    deposits; "public" is shared. `load`: when a stored state is loaded: "measured" (where that is
    predicted to be faster than computing it), "always" or "never". `engine` is "transformers" or
    "llamacpp". `watts`: what the machine draws, for joules where no meter counts them; they are
    labelled as an estimate. `progress(stage, done, total)` and `say(line)` follow long steps:
    pulling, converting and digesting a model.

    Raises:
        UnknownModel, UnreadableModel, UnsupportedModel, MissingExtra, DownloadFailed: the model.
        StoreReadOnly, StoreFull, StoreError: the store.
        UsageError: no such `load` or `engine`, or `watts` that are no power.
    """
    try:
        when = Load(load)
    except ValueError as error:
        hint = ", ".join(one.value for one in Load)
        raise UsageError(f"there is no way to load called {load!r}", hint=hint) from error
    meter = EnergyMeter(watts=watts)
    root = Path(store).expanduser() if store is not None else default_store()
    chunks = open_local(root)
    library = None
    try:
        library = open_library(root)
        salt = TenantSalts(root / "tenants.json").salt(tenant)
        opener = partial(
            open_engine,
            engine=engine,
            dtype=dtype,
            device=device,
            threads=threads,
            paranoid=paranoid,
            progress=progress,
            say=say,
        )
        opened = opener(model)
    except BaseException:
        chunks.close()
        if library is not None:
            library.close()
        raise
    return Memory(opened, chunks, library, tenant, salt, when, meter, opener, root)


@contextmanager
def _opened(verifier: str | Verifier | None) -> Iterator[Verifier | None]:
    """A verifier by its spec, closed afterwards; or the caller's own, left open."""
    if not isinstance(verifier, str):
        yield verifier
        return
    made = make_verifier(verifier)
    try:
        yield made
    finally:
        made.close()
