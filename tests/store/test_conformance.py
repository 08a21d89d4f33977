"""Every store passes the shipped suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgraft.store.local import LocalStore
from kvgraft.store.memory import MemoryStore
from kvgraft.testing.stores import BlobStoreConformance, DurableBlobStoreConformance, MakeStore


class TestMemoryStore(BlobStoreConformance):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return MemoryStore


class TestLocalStore(DurableBlobStoreConformance):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: LocalStore(tmp_path / "store")
