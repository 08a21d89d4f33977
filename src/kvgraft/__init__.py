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
    from kvgraft.library.answer import Answer
    from kvgraft.library.ask import Terms
    from kvgraft.library.budget import Budget
    from kvgraft.library.followup import FollowUp
    from kvgraft.library.ladder import Effort
    from kvgraft.library.problem import Problem
    from kvgraft.library.solve import Outcome
    from kvgraft.library.transfer import Transfer

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Budget",
    "Effort",
    "FollowUp",
    "KvgraftError",
    "Memory",
    "Message",
    "Outcome",
    "Problem",
    "Sampling",
    "Terms",
    "Transfer",
    "__version__",
    "open",
]

# Imported when first asked for: `kvgraft --help` needs none of them, nor numpy.
_PLACES = {
    "Answer": ("kvgraft.library.answer", "Answer"),
    "Budget": ("kvgraft.library.budget", "Budget"),
    "Effort": ("kvgraft.library.ladder", "Effort"),
    "FollowUp": ("kvgraft.library.followup", "FollowUp"),
    "KvgraftError": ("kvgraft.errors", "KvgraftError"),
    "Memory": ("kvgraft.api", "Memory"),
    "Message": ("kvgraft.engines.base", "Message"),
    "Outcome": ("kvgraft.library.solve", "Outcome"),
    "Problem": ("kvgraft.library.problem", "Problem"),
    "Sampling": ("kvgraft.decode", "Sampling"),
    "Terms": ("kvgraft.library.ask", "Terms"),
    "Transfer": ("kvgraft.library.transfer", "Transfer"),
    "open": ("kvgraft.api", "open_memory"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'kvgraft' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
