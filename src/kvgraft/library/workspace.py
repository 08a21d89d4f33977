"""What solving and asking share: one engine, one store, one library, one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kvgraft.breakeven import Load
from kvgraft.energy import EnergyMeter
from kvgraft.engines.base import Engine
from kvgraft.library.address import AddressSpace, RequestIdentity
from kvgraft.library.records import Library
from kvgraft.store.chunks import ChunkStore

PUBLIC = "public"


@dataclass(frozen=True)
class Workspace:
    """`salt` is the tenant's secret; it enters every chunk key. `load` says when stored states
    are loaded. Without a `meter` joules are not measured."""

    engine: Engine
    chunks: ChunkStore
    library: Library
    tenant: str
    salt: bytes
    load: Load = Load.ALWAYS
    meter: EnergyMeter | None = None

    def space(self, system: str | None) -> AddressSpace:
        """Addresses of problems posed to this model's tokenizer and template under `system`."""
        tokenizer = self.engine.tokenizer
        return _space(self.tenant, tokenizer.template_digest, tokenizer.digest, system)


@lru_cache(maxsize=256)
def _space(
    tenant: str, template_digest: str, tokenizer_digest: str, system: str | None
) -> AddressSpace:
    return AddressSpace(
        RequestIdentity(
            problem="",
            tenant=tenant,
            template_digest=template_digest,
            tokenizer_digest=tokenizer_digest,
            system=system,
        )
    )
