"""The golden files of format version 1, as the tests use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from kvgraft.engines.toy import ToyShape
from kvgraft.identity import Fingerprint
from kvgraft.plan import as_token_ids
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.memory import MemoryStore
from toys import CountingToy, memory_chunks

GOLDEN = Path(__file__).parent / "v1"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.pack"))


class Golden:
    """A golden pack with what it was made from."""

    def __init__(self, name: str) -> None:
        self.pack = (GOLDEN / f"{name}.pack").read_bytes()
        self.fingerprint_text = (GOLDEN / f"{name}.fingerprint.json").read_text()
        self.fingerprint = Fingerprint.from_json(self.fingerprint_text)
        self.facts: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
        self.ids = as_token_ids(self.facts["ids"])
        self.salt = bytes.fromhex(self.facts["salt"])
        shape = self.facts["shape"]
        self.engine = CountingToy(
            shape=ToyShape(
                tuple(shape["windows"]),
                shape["block"],
                tuple(shape["rungs"]),
                shape["context_tokens"],
            )
        )
        # The files are this fingerprint's, whatever this machine's own is.
        self.engine.fingerprint = self.fingerprint

    def store(self) -> ChunkStore:
        """A store that holds the golden files and nothing else."""
        blobs = MemoryStore()
        for name, data in {
            self.facts["pack"]: self.pack,
            f"{self.fingerprint.hex}.fingerprint": self.fingerprint_text.encode(),
        }.items():
            writer = blobs.writer()
            writer.write(data)
            writer.publish(name)
        return ChunkStore(blobs, memory_chunks().index)

    def payload(self, item: dict[str, Any]) -> bytes:
        start = item["offset"] + 256
        return self.pack[start : start + item["stored_length"]]

    def tensors(self, item: dict[str, Any]) -> dict[str, np.ndarray]:
        """An object's tensors, by the safetensors library alone."""
        kinds = {"U32": "<u4", "F32": "<f4"}
        return {
            name: np.frombuffer(tensor["data"], kinds[tensor["dtype"]]).reshape(tensor["shape"])
            for name, tensor in safetensors.deserialize(self.payload(item))
        }
