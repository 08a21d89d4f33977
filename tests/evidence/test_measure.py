"""Times and bytes over length: what is measured is there, what is not has a reason."""

from __future__ import annotations

import builtins
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import InputError, StoreFull, UsageError
from kvgraft.evidence import measure as module
from kvgraft.evidence.measure import AtLength, break_even, default_lengths, measure
from kvgraft.state import Role
from kvgraft.store.chunks import Capture, ChunkStore


@pytest.mark.parametrize(
    ("compute", "capture", "restore", "reuses"),
    [
        (5.0, 1.0, 0.01, 1),
        (1.0, 1.0, 0.5, 3),  # at 2 it is even, and even has not paid
        (1.0, 0.0, 0.5, 1),
        (1.0, 4.9, 0.5, 10),
        (1.0, 1.0, 1.0, None),
        (1.0, 1.0, 2.0, None),
        (None, 1.0, 1.0, None),
        (1.0, None, 0.5, None),
        (1.0, 1.0, None, None),
    ],
)
def test_the_reuses_until_it_pays(
    compute: float | None, capture: float | None, restore: float | None, reuses: int | None
) -> None:
    assert break_even(compute, capture, restore) == reuses
    if compute and capture is not None and restore and reuses:
        assert capture + reuses * restore < reuses * compute
        assert reuses == 1 or capture + (reuses - 1) * restore >= (reuses - 1) * compute


def test_the_toy_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine, seen = ToyEngine(), []
    found = measure(engine, [208, 64, 208], progress=lambda *step: seen.append(step))
    assert [at.tokens for at in found] == [64, 208]
    for at in found:
        data = at.as_dict()
        assert (len(at.compute_runs), len(at.restore_runs)) == (3, 7)
        assert all(value > 0 for value in (*at.compute_runs, *at.restore_runs, *at.capture_runs))
        assert data["restore_seconds"] >= sorted(at.restore_runs)[3]
        missing = {name for name, value in data.items() if value is None}
        assert missing == set(data["reasons"])
    small, large = (at.bytes_by_kind for at in found)
    assert small is not None
    assert large is not None
    # What every token adds, and what the window keeps whatever the length.
    assert large["full"] == 208 * engine.spec.bytes_per_token(Role.KEEP)
    assert large["sliding"] == small["sliding"]
    assert set(large) == {"full", "sliding", "end", "ids"}
    assert seen == [("measuring lengths", n, 2) for n in range(3)]
    assert list(tmp_path.iterdir()) == []  # nothing is kept


def test_compression_is_counted_by_kind() -> None:
    (at,) = measure(ToyEngine(), [300])
    assert at.bytes_by_kind is not None
    assert at.compressed_by_kind is not None
    assert set(at.compressed_by_kind) == set(at.bytes_by_kind)
    assert 0 < at.compressed_by_kind["full"] < at.bytes_by_kind["full"]
    compress = module._compressor()
    assert compress is not None
    assert compress(memoryview(bytes(40_000)), 4) < 1000


def test_without_blosc2_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *given: Any, **more: Any) -> Any:
        if name == "blosc2":
            raise ImportError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    (at,) = measure(ToyEngine(), [64])
    assert at.compressed_by_kind is None
    assert "blosc2 is not installed" in at.as_dict()["reasons"]["compressed_by_kind"]
    assert at.bytes_by_kind
    assert at.restore_seconds


def test_a_capture_that_fails_leaves_nothing_that_hangs_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(self: Capture) -> None:
        self.abort()
        raise StoreFull("no space left")

    monkeypatch.setattr(Capture, "commit", full)
    (at,) = measure(ToyEngine(), [64])
    data = at.as_dict()
    assert data["compute_seconds"] > 0
    for name in (
        *("capture_seconds", "restore_seconds", "bytes_by_kind", "compressed_by_kind"),
        "break_even_reuses",
    ):
        assert data[name] is None
        assert data["reasons"][name]
    assert "no space left" in data["reasons"]["restore_seconds"]


def test_a_restore_that_is_not_whole_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkStore, "read", lambda self, wanted: bool(list(wanted)) and False)
    (at,) = measure(ToyEngine(), [64])
    assert at.restore_seconds is None
    assert at.as_dict()["reasons"]["restore_seconds"].startswith("not all could be restored")
    assert at.capture_seconds is not None
    assert at.break_even_reuses is None


def test_a_slow_length_has_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 0.0)
    (at,) = measure(ToyEngine(), [64])
    assert (len(at.compute_runs), len(at.capture_runs), len(at.restore_runs)) == (1, 1, 7)


def test_default_lengths_are_what_the_context_holds() -> None:
    def lengths(context: int) -> list[int]:
        return default_lengths(ToyEngine(shape=ToyShape(context_tokens=context)))

    assert lengths(2048) == [64, 128, 256, 512, 1024]  # two tokens are decoded behind it
    assert lengths(2050)[-1] == 2048
    assert lengths(100_000)[-1] == 4096
    assert lengths(65) == []


@pytest.mark.parametrize("lengths", [[], [0], [-1], [64, 2047]])
def test_lengths_that_cannot_be_measured_are_refused(lengths: list[int]) -> None:
    with pytest.raises(UsageError, match=r"1\.\.2046"):
        measure(ToyEngine(), lengths)


def test_there_must_be_so_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "corpus", lambda: "short")
    with pytest.raises(InputError, match="no text of 64 tokens"):
        measure(ToyEngine(), [64])


def test_a_reason_stands_beside_everything_that_is_none() -> None:
    slower = AtLength(64, [0.1], [0.1], [0.2], reasons={}).as_dict()
    assert slower["break_even_reuses"] is None
    assert "reuse never pays" in slower["reasons"]["break_even_reuses"]
    missing = AtLength(64, [0.1], reasons={"restore_seconds": "why"}).as_dict()
    assert missing["reasons"]["break_even_reuses"] == "a figure it needs is missing"
