"""`kvgraft models`: the demo models that the package index carries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import size, write_document, write_line, write_table
from kvgraft.cli.progress import Watch

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="demo:NAME, as 'kvgraft models ls' prints it.")
]


def pull_command(name: Name, as_json: options.AsJson = False) -> None:
    """Fetch a demo model, after saying its licence and size.

    Its SHA-256 must be the pinned one. Interrupted, the next pull goes on from there. A model
    that is there is only checked.
    """
    from kvgraft.engines import catalog

    try:
        with Watch(f"pulling {name}") as watch:
            path = catalog.pull(name, watch.progress, watch.say)
    except KeyboardInterrupt as stop:
        raise Stopped(stop, {}, "pull again: it goes on with what is there") from stop
    model = catalog.find(name)
    if as_json:
        write_document(
            {
                "name": model.name,
                "path": str(path),
                "bytes": model.gguf_bytes,
                "sha256": model.sha256,
                "license": model.license,
            }
        )
        return
    write_line(f"{name} is there: {path} ({size(model.gguf_bytes)}, licence {model.license})")


def ls_command(as_json: options.AsJson = False) -> None:
    """List the demo models, their sizes and licences."""
    from kvgraft.engines import catalog
    from kvgraft.engines.modelcache import cache_root

    here = {model.name: model for model in catalog.installed()}
    rows: list[dict[str, Any]] = []
    for name, model in catalog.CATALOG.items():
        mine = here.get(name)
        rows.append(
            {
                "name": name,
                "fetched": mine is not None,
                "converted": mine is not None and mine.converted,
                "path": str(mine.path) if mine else None,
                "bytes": mine.bytes if mine else 0,
                "download_bytes": model.download_bytes,
                "context_tokens": model.context_tokens,
                "license": model.license,
                "description": model.description,
            }
        )
    if as_json:
        write_document({"cache": str(cache_root()), "models": rows})
        return
    write_table(
        ["name", "size", "", "context", "licence", "what"],
        [
            [
                row["name"],
                size(row["bytes"] if row["fetched"] else row["download_bytes"]),
                "on disk" if row["fetched"] else "to fetch",
                f"{row['context_tokens']:,}",
                row["license"],
                row["description"],
            ]
            for row in rows
        ],
        right=["size", "context"],
    )
    total = sum(model.bytes for model in here.values())
    write_line(f"{len(here)} fetched, {size(total)} in {cache_root()}")


def rm_command(name: Name, as_json: options.AsJson = False) -> None:
    """Delete a fetched demo model.

    What was converted from it goes too; deposits stay.
    """
    from kvgraft.engines import catalog

    freed = catalog.remove(name)
    if as_json:
        write_document({"name": name, "freed_bytes": freed})
    else:
        write_line(f"{name}: freed {size(freed)}" if freed else f"{name} was not there")
