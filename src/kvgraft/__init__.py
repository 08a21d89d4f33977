"""kvgraft: exact, persistent memory for frozen language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgraft.api import Memory
    from kvgraft.api import open_memory as open
    from kvgraft.decode import Sampling
    from kvgraft.engines.base import Message
    from kvgraft.errors import KvgraftError
    from kvgraft.library.ask import Answer
    from kvgraft.library.problem import Problem
    from kvgraft.library.solve import Effort, Outcome

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Effort",
    "KvgraftError",
    "Memory",
    "Message",
    "Outcome",
    "Problem",
    "Sampling",
    "__version__",
    "open",
]

# Imported when first asked for: `kvgraft --help` needs none of them, nor numpy.
_PLACES = {
    "Answer": ("kvgraft.library.ask", "Answer"),
    "Effort": ("kvgraft.library.solve", "Effort"),
    "KvgraftError": ("kvgraft.errors", "KvgraftError"),
    "Memory": ("kvgraft.api", "Memory"),
    "Message": ("kvgraft.engines.base", "Message"),
    "Outcome": ("kvgraft.library.solve", "Outcome"),
    "Problem": ("kvgraft.library.problem", "Problem"),
    "Sampling": ("kvgraft.decode", "Sampling"),
    "open": ("kvgraft.api", "open_memory"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'kvgraft' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
