"""What every `Engine` must do, as a suite that any engine passes.

An engine is tested by a subclass with two fixtures, and a third where it declares `threads`:

    my_engine = functools.cache(lambda: MyEngine(...))

    class TestMine(EngineConformance):
        @pytest.fixture
        def engine(self):
            return my_engine()

        @pytest.fixture
        def store_factory(self):
            return lambda: ChunkStore(MemoryStore(), Index(None))

        @pytest.fixture
        def set_threads(self):
            return my_library.set_num_threads

Sharing one engine is wanted: that the cases leave no trace in it is part of what they test. Give it
a small plan (a block of 16) and a short context, or the cases take long. Equality is by SHA-256 of
float32 logits wherever the contract promises bits.
"""

from __future__ import annotations

import pytest

from kvgraft.testing.engine_bits import BitCases
from kvgraft.testing.engine_bounds import BoundsCases


@pytest.mark.conformance
class EngineConformance(BitCases, BoundsCases):
    """The cases. Subclass it and give `engine` and `store_factory`."""
