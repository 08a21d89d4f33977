"""What a collection was made for, and where it lies: one file for each name of each tenant."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kvgraft.context.layout import Layout
from kvgraft.engines.base import Engine
from kvgraft.errors import UsageError
from kvgraft.limits import MAX_COLLECTION_NAME_CHARS

FOLDER = "collections"  # inside a store's folder


@dataclass(frozen=True)
class About:
    """What a collection was made for. `page_tokens` is the budget of a page, preamble and all."""

    name: str
    tenant: str
    model: str
    fingerprint: str
    tokenizer_digest: str
    template_digest: str
    page_tokens: int
    preamble: str
    embedder: str | None = None  # the digest of what made its vectors; None: words alone

    @property
    def layout(self) -> Layout:
        return Layout(self.preamble)

    def check_same(self, other: About) -> None:
        """Refuse to put other pages into this collection.

        Raises:
            UsageError: `other` would make other pages.
        """
        names = ("tokenizer_digest", "template_digest", "page_tokens", "preamble", "embedder")
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        if differing:
            raise UsageError(
                f"the collection was made with another {', '.join(differing)}, for {self.model}",
                where=self.name,
                hint="give the same options, or ingest into a new collection",
            )

    def check_engine(self, engine: Engine) -> None:
        """Refuse a model whose prompts these pages do not fit.

        Raises:
            UsageError: another tokenizer or chat template.
        """
        tokenizer = engine.tokenizer
        mine = (self.tokenizer_digest, self.template_digest)
        if mine != (tokenizer.digest, tokenizer.template_digest):
            raise UsageError(
                f"the collection was made for {self.model}; {engine.model} has another tokenizer"
                " or chat template",
                where=self.name,
                hint="ask with that model, or ingest the documents into a new collection",
            )


def collection_path(store: Path, tenant: str, name: str) -> Path:
    """The file of a tenant's collection. Its name says nothing about either.

    Raises:
        UsageError: no name, or too long a one.
    """
    if not 0 < len(name) <= MAX_COLLECTION_NAME_CHARS or not name.isprintable():
        raise UsageError(
            f"a collection's name has 1 to {MAX_COLLECTION_NAME_CHARS} printable characters"
        )
    digest = blake3(json.dumps([tenant, name]).encode()).hexdigest(16)
    return store / FOLDER / f"{digest}.sqlite3"
