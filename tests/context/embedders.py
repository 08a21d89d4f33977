"""A tiny embedder: words as vectors that chance gives them, and a text as their sum."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

# Words that mean the same have the same vector.
SAME = {"automobile": "car", "vehicle": "car", "purchased": "bought", "acquired": "bought"}


class TinyEmbedder:
    """Counts the texts that it embedded."""

    name = "tiny"
    dimensions = 64

    def __init__(self, digest: str = "tiny-1") -> None:
        self.digest = digest
        self.embedded = 0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.embedded += len(texts)
        rows = [self._one(text) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), self.dimensions)

    def _one(self, text: str) -> np.ndarray:
        words = "".join(c if c.isalnum() else " " for c in text.lower()).split() or [""]
        total = sum(self._word(SAME.get(word, word)) for word in words)
        return total / np.linalg.norm(total)

    def _word(self, word: str) -> np.ndarray:
        seed = blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(seed, "big")).standard_normal(self.dimensions)
