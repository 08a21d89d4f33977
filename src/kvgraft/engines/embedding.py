"""all-MiniLM-L6-v2: sentences and short paragraphs as vectors, computed with torch on the CPU.

Reimers and Gurevych, Sentence-BERT (2019): a small BERT, the mean of its last states over a text's
tokens, scaled to unit length. The archive is read where it lies; nothing is unpacked.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from kvgraft.engines import catalog
from kvgraft.engines.modelcache import Progress, Say
from kvgraft.errors import MissingExtra, UnreadableModel
from kvgraft.limits import EMBED_BATCH_TOKENS, MAX_EMBEDDED_TOKENS

NAME = "embed:minilm"
_PACKAGES = ("torch", "transformers", "tokenizers")


class SentenceEmbedder:
    """The loaded model: a `kvgraft.context.embed.Embedder`.

    One text given alone has the same vector every time, with one build of torch on one machine and
    one number of threads. In a batch its last bits depend on the texts beside it.
    """

    name = "all-MiniLM-L6-v2"

    def __init__(self, archive: Path, sha256: str) -> None:
        """Load the archive. `sha256` is its digest, as it was checked.

        Raises:
            UnreadableModel: it does not hold the model.
        """
        import torch
        import transformers
        from safetensors.torch import load
        from tokenizers import Tokenizer

        try:
            with zipfile.ZipFile(archive) as members:
                config = json.loads(members.read("config.json"))
                self._tokenizer: Any = Tokenizer.from_str(members.read("tokenizer.json").decode())
                weights = load(members.read("model.safetensors"))
            # Making a model draws random numbers, which the caller's own must not notice.
            with torch.random.fork_rng(devices=[]):
                model = transformers.BertModel(
                    transformers.BertConfig(**config), add_pooling_layer=False
                )
            known = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
            known.pop("embeddings.position_ids", None)
            model.load_state_dict(known)
        except Exception as error:  # zipfile, tokenizers and torch raise many kinds
            raise UnreadableModel(
                f"the embedding model cannot be loaded: {error}", where=str(archive)
            ) from error
        self._model: Any = model.float().eval()
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_EMBEDDED_TOKENS)
        self.dimensions = int(config["hidden_size"])
        made_by = [self.name, sha256, "mean", MAX_EMBEDDED_TOKENS]
        self.digest: str = blake3(json.dumps(made_by).encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row per text, of unit length: float32 [texts, dimensions].

        What is behind a text's first `limits.MAX_EMBEDDED_TOKENS` tokens is not read.
        """
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        ids = [one.ids for one in self._tokenizer.encode_batch([_whole(text) for text in texts])]
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        while order:
            longest = len(ids[order[-1]])
            size = max(1, EMBED_BATCH_TOKENS // longest)
            batch, order = order[-size:], order[:-size]
            vectors[batch] = self._forward([ids[place] for place in batch], longest)
        return vectors

    def _forward(self, ids: list[list[int]], longest: int) -> npt.NDArray[np.float32]:
        import torch

        padded = torch.zeros((len(ids), longest), dtype=torch.long)
        mask = torch.zeros_like(padded)
        for row, some in enumerate(ids):
            padded[row, : len(some)] = torch.tensor(some)
            mask[row, : len(some)] = 1
        with torch.inference_mode():
            states = self._model(input_ids=padded, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).float()
            mean = (states * weights).sum(1) / weights.sum(1)
            return np.asarray(torch.nn.functional.normalize(mean, dim=1).numpy())


def _whole(text: str) -> str:
    """Without lone surrogates, which the tokenizer cannot take."""
    return text.encode("utf-8", "replace").decode()


def load_embedder(progress: Progress, say: Say) -> SentenceEmbedder:
    """The model, pulled first if it is absent; what `catalog.pull` raises, and:

    Raises:
        MissingExtra: torch or transformers are not installed.
        UnreadableModel: the archive does not hold the model.
    """
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingExtra(
            f"embedding texts needs {', '.join(absent)}",
            where=NAME,
            hint="pip install 'kvgraft[transformers]', or search by words alone",
        )
    path = catalog.pull(NAME, progress, say)
    return SentenceEmbedder(path, catalog.find(NAME).sha256)
