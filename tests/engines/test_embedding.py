"""The embedding model: what it computes, and what becomes of a model that is damaged or absent."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgraft.context.embed import Embedder, open_embedder
from kvgraft.engines import catalog, embedding
from kvgraft.engines.embedding import SentenceEmbedder
from kvgraft.errors import MissingExtra, UnknownModel, UnreadableModel

SENTENCES = (
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
)


@pytest.fixture(scope="module")
def embedder(model_cache: Any) -> Embedder:
    """The real model, as users open it."""
    model_cache.get(embedding.NAME)
    return open_embedder()


def test_its_vectors_are_the_published_ones(embedder: Embedder) -> None:
    vectors = embedder.embed(SENTENCES)
    assert (vectors.shape, vectors.dtype) == ((4, 384), np.float32)
    # The similarities that the model's authors show for these sentences.
    assert (vectors @ vectors[0]).tolist() == pytest.approx([1, 0.6946, 0.9429, 0.2569], abs=1e-4)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_text_alone_is_always_the_same_and_in_a_batch_nearly(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    state = torch.random.get_rng_state()
    alone = [embedder.embed([text])[0] for text in SENTENCES]
    again = [embedder.embed([text])[0] for text in SENTENCES]
    assert (np.stack(again) == np.stack(alone)).all()
    texts = [*SENTENCES, "word " * 200, "", "\N{ROCKET}\0\ud800 東京"]
    for tokens in (4_096, 16, 1):  # however it is cut into batches, the rows keep their order
        monkeypatch.setattr(embedding, "EMBED_BATCH_TOKENS", tokens)
        batch = embedder.embed(texts)
        assert np.isfinite(batch).all()
        assert np.abs(batch[:4] - np.stack(alone)).max() < 1e-5
    assert embedder.embed([]).shape == (0, 384)
    assert (torch.random.get_rng_state() == state).all()


def test_only_the_first_tokens_are_read(embedder: Embedder) -> None:
    start = "a word " * 200
    one, other, short = (
        embedder.embed([text])[0]
        for text in (start + "zebra", start + "a lion " * 5_000, "a word " * 20 + "zebra")
    )
    assert (one == other).all()
    assert (one != short).any()


def test_loading_leaves_the_callers_random_numbers_alone(model_cache: Any) -> None:
    import torch

    path = model_cache.get(embedding.NAME)
    state = torch.random.get_rng_state()
    first = SentenceEmbedder(path, "one")
    assert (torch.random.get_rng_state() == state).all()
    assert first.digest != open_embedder().digest == open_embedder().digest


def test_it_is_in_the_catalogue_but_no_language_model() -> None:
    model = catalog.find(embedding.NAME)
    assert model.path.parts[-2:] == ("embed", "minilm.zip")
    assert len(bytes.fromhex(model.sha256)) == 32
    assert embedding.NAME not in catalog.CATALOG
    with pytest.raises(UnknownModel):
        catalog.find("embed:other")


@pytest.mark.parametrize(
    "members",
    [
        None,
        {},
        {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b""},
        {"config.json": b"not json", "tokenizer.json": b"", "model.safetensors": b""},
    ],
)
def test_what_is_no_model_is_named(tmp_path: Path, members: dict[str, bytes] | None) -> None:
    path = tmp_path / "minilm.zip"
    path.write_bytes(b"not a zip")
    if members is not None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    with pytest.raises(UnreadableModel, match="cannot be loaded"):
        SentenceEmbedder(path, "digest")


def test_without_torch_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    monkeypatch.setattr(catalog, "pull", lambda *_: pytest.fail("fetched"))
    with pytest.raises(MissingExtra, match="needs torch") as caught:
        open_embedder()
    assert "kvgraft[transformers]" in caught.value.hint
