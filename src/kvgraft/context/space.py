"""What everything that is read shares: one engine, one store, one tenant."""

from __future__ import annotations

from dataclasses import dataclass

from kvgraft.breakeven import Load
from kvgraft.energy import EnergyMeter
from kvgraft.engines.base import Engine
from kvgraft.store.chunks import ChunkStore


@dataclass(frozen=True)
class Space:
    """`salt` is the tenant's secret; it enters every chunk key. `load` says when stored states
    are loaded. Without a `meter` joules are not measured."""

    engine: Engine
    chunks: ChunkStore
    tenant: str
    salt: bytes
    load: Load = Load.ALWAYS
    meter: EnergyMeter | None = None
