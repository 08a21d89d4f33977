"""`kvgraft collection`: which there are, what is in one, and taking documents out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.output import counted, write_document, write_facts, write_line, write_table
from kvgraft.cli.session import existing_chunks, store_folder
from kvgraft.errors import KvgraftError, RecordNotFound, UsageError

if TYPE_CHECKING:
    from kvgraft.context.collection import Collection

Name = Annotated[str, typer.Argument(metavar="NAME", help="The collection.")]


def ls_command(
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """List a tenant's collections."""
    from kvgraft.context.about import FOLDER
    from kvgraft.context.collection import Collection

    folder = store_folder(store) / FOLDER
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.sqlite3")) if folder.is_dir() else []:
        try:
            with Collection.open(path, read_only=True) as held:
                about, totals = held.about, held.totals()
        except KvgraftError as error:
            rows.append({"name": None, "model": None, "error": str(error)})
            continue
        if about.tenant == tenant:
            rows.append({"name": about.name, "model": about.model, "error": None, **totals})
    if as_json:
        write_document({"collections": rows})
        return
    if not rows:
        write_line("no collections: 'kvgraft ingest' makes one")
        return
    columns = ("name", "model", "documents", "pages", "captured", "tokens")
    write_table(
        columns,
        [
            tuple("?" if row.get(name) is None else str(row[name]) for name in columns)
            for row in rows
        ],
        right=columns[2:],
    )


def show_command(
    name: Name,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Show what a collection was made for, and its documents."""
    with _existing(name, store, tenant) as held:
        about, totals = held.about, held.totals()
        documents = [
            {
                "path": one.path,
                "title": one.title,
                "kind": one.kind,
                "size_bytes": one.size_bytes,
            }
            for one in held.documents()
        ]
    if as_json:
        write_document({"about": vars(about), "totals": totals, "documents": documents})
        return
    write_facts(
        [
            ("name", about.name),
            ("model", about.model),
            ("pages", f"up to {about.page_tokens} tokens"),
            *((what, f"{count:,}") for what, count in totals.items()),
        ]
    )
    for one in documents:
        write_line(f"{one['kind']:<9} {one['path']}")


def rm_command(
    name: Name,
    document: Annotated[
        Path | None,
        typer.Option(
            "--document",
            metavar="PATH",
            help="Take one document out. Without it the whole collection is removed.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove the collection, its pages and their states.")
    ] = False,
    store: options.Store = None,
    tenant: options.Tenant = "public",
    as_json: options.AsJson = False,
) -> None:
    """Remove a document from a collection, or all of it, states included."""
    from kvgraft.context.about import collection_path

    if everything == (document is not None):
        raise UsageError("give one of --document and --all")
    freed, removed = 0, 0
    with existing_chunks(store) as chunks, _existing(name, store, tenant, write=True) as held:
        paths = [one.path for one in held.documents()] if everything else [_path(held, document)]
        for path in paths:
            freed += sum(chunks.discard(key) for key in held.remove_document(path))
            removed += 1
    if everything:
        file = collection_path(store_folder(store), tenant, name)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
    if as_json:
        write_document({"removed": removed, "freed_bytes": freed})
    else:
        write_line(f"removed {counted(removed, 'document')}, {freed:,} bytes of states")


def _path(held: Collection, document: Path | None) -> str:
    """A document as the collection names it, or as it is on this disk."""
    assert document is not None
    names = (str(document), os.path.realpath(document.expanduser()))
    for name in names:
        if held.document(name) is not None:
            return name
    raise RecordNotFound("the collection has no such document", where=names[1])


@contextmanager
def _existing(
    name: str, store: Path | None, tenant: str, *, write: bool = False
) -> Iterator[Collection]:
    from kvgraft.context.about import collection_path
    from kvgraft.context.collection import Collection

    path = collection_path(store_folder(store), tenant, name)
    with Collection.open(path, read_only=not write, name=name) as held:
        yield held
