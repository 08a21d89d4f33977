"""Opening what a command works on: a model with its memory, or a store that is there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvgraft.cli.option_groups import MemoryOptions
from kvgraft.cli.progress import Watch
from kvgraft.errors import StoreError, StoreReadOnly

if TYPE_CHECKING:
    from kvgraft.api import Memory
    from kvgraft.library.records import Library
    from kvgraft.store.chunks import ChunkStore

NAME_ANOTHER = "name another folder with --store or KVGRAFT_STORE"


@contextmanager
def opened(
    model: str, options: MemoryOptions, watch: Watch, watts: float | None = None
) -> Iterator[Memory]:
    """The model with its memory, closed afterwards. `watts`: see `kvgraft.api.open_memory`."""
    from kvgraft.api import open_memory

    folder = store_folder(options.store)
    computed = options.computed
    # Whatever an engine's packages print while they load is not this command's output.
    with contextlib.redirect_stdout(sys.stderr):
        memory = open_memory(
            model,
            store=folder,
            tenant=options.tenant,
            engine=computed.engine.value,
            dtype=computed.dtype.value,
            device=computed.device,
            threads=computed.threads,
            paranoid=computed.paranoid,
            load=options.load.value,
            watts=watts,
            progress=watch.progress,
            say=watch.say,
        )
    with memory:
        yield memory


def fetch_demo(model: str, engine: str, watch: Watch) -> None:
    """Pull a demo model that is absent, here, where its licence and size can be shown."""
    from kvgraft.engines import catalog, registry

    # Without an engine that can load it, fetching would be in vain.
    if model in catalog.CATALOG and registry.is_installed(engine):
        catalog.pull(model, watch.progress, watch.say)


def store_folder(store: Path | None) -> Path:
    """The folder that is meant, whether or not it is there.

    Raises:
        StoreError: something else than a folder stands there.
    """
    from kvgraft.api import default_store

    folder = default_store() if store is None else store.expanduser()
    if folder.exists() and not folder.is_dir():
        raise StoreError("the store is a file, not a folder", where=str(folder), hint=NAME_ANOTHER)
    return folder


@contextmanager
def existing_chunks(store: Path | None) -> Iterator[ChunkStore]:
    """The chunk store of a folder that has one, closed afterwards.

    Raises:
        StoreError: there is none. Looking must not make one: a misspelt name would look empty.
    """
    from kvgraft.store.check import MARK_NAME, open_local

    folder = store_folder(store)
    if not (folder / MARK_NAME).exists() and not (folder / "blobs").is_dir():
        raise _nothing("store", folder)
    chunks = open_local(folder)
    try:
        yield chunks
    finally:
        chunks.close()


@contextmanager
def existing_library(store: Path | None, *, read_only: bool) -> Iterator[Library]:
    """The library of a folder that has one, closed afterwards.

    Raises:
        StoreError: there is none.
    """
    from kvgraft.api import LIBRARY_NAME, open_library

    folder = store_folder(store)
    if not (folder / LIBRARY_NAME).exists():
        raise _nothing("library", folder)
    try:
        library = open_library(folder, read_only=read_only)
    except StoreReadOnly:
        if not read_only:
            raise
        # Perhaps it is of an older release: opening it for writing brings it up to date.
        open_library(folder).close()
        library = open_library(folder, read_only=True)
    with library:
        yield library


def _nothing(what: str, folder: Path) -> StoreError:
    return StoreError(
        f"there is no {what} yet",
        where=str(folder),
        hint=f"'kvgraft solve' and 'kvgraft ask' make one; or {NAME_ANOTHER}",
    )
