"""The scripted model and its workspace, which solving, replaying and asking are tested on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgraft.library.workspace import Workspace
from library.scripted import ScriptedEngine, opened, solving_engine


@pytest.fixture
def engine() -> ScriptedEngine:
    return solving_engine()


@pytest.fixture
def workspace(tmp_path: Path, engine: ScriptedEngine) -> Iterator[Workspace]:
    with opened(tmp_path / "store", engine) as made:
        yield made
