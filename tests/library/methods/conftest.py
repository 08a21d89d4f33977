"""A file of methods of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.library.methods.records import Methods
from library.methods.writer import methods_in


@pytest.fixture
def methods(tmp_path: Path) -> Iterator[Methods]:
    with methods_in(tmp_path) as opened:
        yield opened
