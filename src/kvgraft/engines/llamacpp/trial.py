"""Does llama.cpp survive this file here? Tried in a process of its own, once per file and build.

llama.cpp ends the process on files that are whole but contradict themselves (a vocabulary that
has a token twice, for one), and a build for another CPU ends it at the first batch. Whoever opens
a model is to get an error instead. `python -m kvgraft.engines.llamacpp.trial FILE` is the child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from blake3 import blake3

from kvgraft.engines.llamacpp.library import build_name
from kvgraft.engines.llamacpp.model import Model
from kvgraft.engines.llamacpp.session import Session
from kvgraft.engines.llamacpp.tokenizer import LlamaTokenizer
from kvgraft.errors import KvgraftError, UnreadableModel
from kvgraft.limits import MODEL_TRIAL_SECONDS

_ROWS = 32  # a batch, and not one row: other kernels
_TEXT = "One word, 2 words:\n\tcaf\u00e9"


def survive(path: Path, weights_digest: str, cache: Path) -> None:
    """Try a file unless this build was seen to survive its content. `cache` is a folder.

    Raises:
        UnreadableModel: the child was ended by a signal, or did not end in time.
    """
    name = blake3(f"{weights_digest} {build_name()}".encode()).hexdigest()
    mark = cache / "llamacpp-tried" / name
    if mark.exists():
        return
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvgraft.engines.llamacpp.trial", str(path)],
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # a debugger would be started for it
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=MODEL_TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableModel(
            f"llama.cpp was still busy with this file after {MODEL_TRIAL_SECONDS:.0f} s",
            where=str(path),
            hint="try it with llama.cpp's own tools; a disk this slow takes another one",
        ) from error
    if done.returncode < 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise UnreadableModel(
            f"llama.cpp ends the process on this file ({signal.Signals(-done.returncode).name}):"
            f" {said[-1] if said else 'it said nothing'}",
            where=str(path),
            hint="the file contradicts itself, or llama.cpp was built for another CPU: "
            "pip install --force-reinstall --no-cache-dir llama-cpp-python",
        )
    if done.returncode:  # an error that this process will meet too
        return
    with contextlib.suppress(OSError):  # then it is tried again next time
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def main(arguments: list[str]) -> int:
    """Load the file, tokenise and compute a little. Errors that have a name are the parent's."""
    with contextlib.suppress(KvgraftError):
        model = Model(Path(arguments[0]))
        LlamaTokenizer(model, "").encode(_TEXT)
        session = Session(
            model.pointer, tokens=_ROWS, rows=_ROWS, threads=1, sequences=1, outputs=1
        )
        session.decode(np.zeros(_ROWS, np.int64), 0)
        session.state()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
