"""A study that was run once, for all tests that look at what came out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgraft.study import run
from kvgraft.study.report import score_study
from study.studied import studied


@pytest.fixture(scope="session", autouse=True)
def same_code() -> Iterator[None]:
    """However the sources change while tests run, the studies here are of one code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "code_part", lambda: {"kvgraft": "0", "sources_sha256": "0"})
        yield


@pytest.fixture(scope="session")
def finished(same_code: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small study that was run to its end and scored. Not to be changed."""
    folder = tmp_path_factory.mktemp("study") / "run"
    studied(folder)
    score_study(folder, folder)
    return folder


@pytest.fixture(scope="session")
def figures(finished: Path) -> dict[str, Any]:
    """The figures of that study."""
    return score_study(finished, finished)
