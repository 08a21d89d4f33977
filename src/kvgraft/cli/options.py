"""The options that several commands have: one name, one meaning, one help text each."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from kvgraft.limits import MAX_ATTEMPTS, MAX_NEW_TOKENS

MODEL_HELP = (
    "toy, toy:SEED, demo:NAME (see 'kvgraft models ls'; fetched if absent), a model folder, "
    "a .gguf file, or a Hugging Face id."
)
VERIFIER_HELP = (
    "math, exact, regex:PATTERN, command:'PROGRAM ARGS', code, schema, substitute, "
    "consensus:SHARE,QUORUM, program:N, or several: all:[V] [V], any:[V] [V] (docs/VERIFIERS.md)."
)


class Dtype(str, Enum):
    """Tensor types that engines compute in."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Load(str, Enum):
    """When a stored state is loaded."""

    measured = "measured"
    always = "always"
    never = "never"


class Engine(str, Enum):
    """What real models are computed with."""

    transformers = "transformers"
    llamacpp = "llamacpp"


Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        envvar="KVGRAFT_STORE",
        metavar="DIR",
        help="Folder of states and deposits. Default: kvgraft in $XDG_DATA_HOME or ~/.local/share.",
        show_default=False,
    ),
]
Tenant = Annotated[
    str,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Whose states and deposits. Tenants do not see each other's; 'public' is shared.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document, and nothing else, on standard output."),
]
Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP, show_default=False)
]
Attempts = Annotated[
    int,
    typer.Option(
        "--attempts", min=1, max=MAX_ATTEMPTS, metavar="K", help="Attempts, in one batch."
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        min=1,
        max=MAX_NEW_TOKENS,
        metavar="N",
        help="New tokens of an attempt. One that needs more is cut off, and never deposited.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Chooses the samples.")]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="What computes: transformers (PyTorch), or llamacpp (GGUF files as they are, on the "
        "CPU). Each keeps states of its own.",
    ),
]
DtypeOption = Annotated[
    Dtype,
    typer.Option(
        "--dtype", help="What the model computes in (the toy: float32; llamacpp: the file's own)."
    ),
]
LoadOption = Annotated[
    Load,
    typer.Option(
        "--load",
        envvar="KVGRAFT_LOAD",
        help="When a stored state is loaded: where that is predicted to be faster than computing "
        "it, always, or never. The answer is the same.",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda or cuda:N.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        metavar="N",
        help="Threads to compute with. Another count may give other bits, so it is part of the "
        "fingerprint. Default: what the engine takes by itself.",
        show_default=False,
    ),
]
Watts = Annotated[
    float | None,
    typer.Option(
        "--watts",
        metavar="W",
        help="What this machine draws, where no meter counts joules: they are then estimated, and "
        "labelled so. Default: they are not measured.",
        show_default=False,
    ),
]
Paranoid = Annotated[
    bool,
    typer.Option("--paranoid", help="Read every byte of the weights again for their digest."),
]


def examples(*lines: str) -> str:
    """The end of a command's help. `\\b` keeps the lines as they are."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def example_lines(epilog: str | None) -> list[str]:
    """The command lines in what `examples` made."""
    lines = (epilog or "").splitlines()
    return [line.strip() for line in lines if line.startswith("  kvgraft ")]
