"""The llama.cpp library behind llama-cpp-python: loaded once, silenced, and named by content."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp
from blake3 import blake3

# What ggml's CPU kernels and llama.cpp read themselves and let bits depend on. OpenMP may give
# fewer threads than asked for, and fewer threads split attention elsewhere.
KERNEL_VARIABLES = (
    "GGML_BACKEND_PATH",
    "GGML_CPU_DISABLE_FUSION",
    "GGML_CPU_TILED_MM",
    "GGML_CPU_TILED_MM_FORCE",
    "LLAMA_ATTN_ROT_DISABLE",
    "OMP_DYNAMIC",
    "OMP_THREAD_LIMIT",
)
_ERROR = 4  # ggml's log levels: 2 information, 3 warning, 4 error
_LIBRARIES = ("libggml", "libllama.")


class _Log:
    """Takes what llama.cpp says instead of standard error. Remembers the first complaint since it
    was last asked: the ones after it only say that something failed."""

    def __init__(self) -> None:
        self.error = ""
        self.callback = llama_cpp.llama_log_callback(self._hear)

    def _hear(self, level: int, text: bytes | None, data: Any) -> None:
        if level == _ERROR and text and not self.error:
            self.error = text.decode("utf-8", "replace").strip()


# Kept for the life of the process: llama.cpp calls it whenever it likes.
_LOG = _Log()


@cache
def start() -> None:
    """Silence llama.cpp and start its backends, once per process."""
    llama_cpp.llama_log_set(_LOG.callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


def complaint() -> str:
    """The first error line that llama.cpp logged since this was last called, or "it said
    nothing"."""
    said, _LOG.error = _LOG.error, ""
    return said or "it said nothing"


@cache
def build_name() -> str:
    """Version of the package, digest of the libraries that were loaded, and what they were built
    for: two builds of one version may give other bits."""
    start()
    hasher = blake3()
    for path in sorted(_loaded_libraries()):
        hasher.update(blake3(path.read_bytes()).digest())
    # "CPU : AVX = 1 | FMA = 1 | ..." becomes "CPU:AVX=1+FMA=1"
    info = llama_cpp.llama_print_system_info().decode().replace(" ", "").strip("|\n")
    package = version("llama-cpp-python")
    return f"llama-cpp-python-{package}/{hasher.hexdigest()[:32]}/{info.replace('|', '+')}"


def _loaded_libraries() -> set[Path]:
    """The shared libraries of llama.cpp in this process, by their real paths."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        mapped = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
        paths = {Path(name) for name in mapped if Path(name).name.startswith(_LIBRARIES)}
    except OSError:  # not Linux: what lies beside the bindings is what they load
        paths = set(folder.glob("lib*"))
    return {path.resolve() for path in paths}
