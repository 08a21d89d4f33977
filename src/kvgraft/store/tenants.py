"""Tenant salts: the secret that keeps one tenant's chunk keys out of another's reach.

A salt enters every chunk key, so a tenant finds only what was stored under its own. Salts are
made once and kept: a lost salt makes every state that was stored under it unreachable, so a
damaged file is an error, never a reason to make new ones.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from filelock import FileLock, Timeout

from kvgraft.errors import StoreError, UsageError
from kvgraft.limits import MAX_LIBRARY_NAME_CHARS
from kvgraft.plan import PUBLIC_SALT
from kvgraft.store.local import store_error, write_whole

PUBLIC_TENANT = "public"
_VERSION = 1
_SALT = re.compile(r"[0-9a-f]{64}")
_LOCK_SECONDS = 30.0  # making a salt takes milliseconds; whoever holds the lock longer is stuck


class TenantSalts:
    """Salts of tenants in one JSON file, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def salt(self, tenant: str) -> bytes:
        """The tenant's salt (32 bytes), made when it is first asked for.

        `public` has the well-known salt: what is stored under it is shared.

        Raises:
            UsageError: not a tenant name.
            StoreError: the file is damaged, or of a newer release.
            StoreFull, StoreReadOnly: a new salt cannot be kept.
        """
        if not 0 < len(tenant) <= MAX_LIBRARY_NAME_CHARS:
            raise UsageError(
                f"a tenant's name has 1 to {MAX_LIBRARY_NAME_CHARS} characters, not {len(tenant)}"
            )
        if tenant == PUBLIC_TENANT:
            return PUBLIC_SALT
        # The file is only ever replaced as a whole, so looking needs no lock.
        return self._read().get(tenant) or self._make(tenant)

    def _make(self, tenant: str) -> bytes:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self._path}.lock", timeout=_LOCK_SECONDS):
                salts = self._read()  # again: another process may have made it meanwhile
                if tenant not in salts:
                    salts[tenant] = secrets.token_bytes(32)
                    self._write(salts)
                return salts[tenant]
        except Timeout as error:
            raise StoreError(
                f"another process has held the lock for {_LOCK_SECONDS:.0f} seconds",
                where=f"{self._path}.lock",
            ) from error
        except OSError as error:
            raise store_error(error, self._path, "making a tenant's salt") from error

    def _write(self, salts: dict[str, bytes]) -> None:
        data = {"format": _VERSION, "salts": {name: salt.hex() for name, salt in salts.items()}}
        write_whole(self._path, json.dumps(data, indent=1, sort_keys=True).encode(), mode=0o600)

    def _read(self) -> dict[str, bytes]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise store_error(error, self._path, "reading tenants' salts") from error
        try:
            data = json.loads(text)
            version = data["format"]
            salts = _checked(data["salts"]) if version == _VERSION else None
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                "the file of tenant salts is damaged",
                where=str(self._path),
                hint="put back a copy of it; with new salts nothing stored would be found again",
            ) from error
        if salts is None:
            raise StoreError(
                f"tenant salts of format {version!r}; this release reads {_VERSION}",
                where=str(self._path),
                hint="upgrade kvgraft",
            )
        return salts


def _checked(salts: dict[str, str]) -> dict[str, bytes]:
    if not all(_SALT.fullmatch(value) for value in salts.values()):
        raise ValueError("a salt is 32 bytes in hex")
    if len({PUBLIC_SALT.hex(), *salts.values()}) != len(salts) + 1:
        raise ValueError("two tenants would share what they store")
    return {name: bytes.fromhex(value) for name, value in salts.items()}
