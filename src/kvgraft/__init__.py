"""kvgraft: exact, persistent memory for frozen language models."""

from kvgraft.api import Memory
from kvgraft.api import open_memory as open
from kvgraft.decode import Sampling
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
    "Outcome",
    "Problem",
    "Sampling",
    "__version__",
    "open",
]
