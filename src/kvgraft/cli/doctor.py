"""`kvgraft doctor`: what this machine has of what kvgraft needs. No model is loaded."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvgraft.cli import options
from kvgraft.cli.edge import Stopped
from kvgraft.cli.output import counted, one_line, size, write_document, write_line, write_table
from kvgraft.cli.progress import Watch
from kvgraft.errors import CheckFailed, KvgraftError

OK, WARN, FAIL = "ok", "warn", "fail"

LOW_DISK_BYTES = 2_000_000_000  # a demo model and its conversion take half of it
NO_DISK_BYTES = 50_000_000
LOW_MEMORY_BYTES = 1_500_000_000  # the smallest demo model with its libraries
PROBE_SECONDS = 120.0  # importing torch takes seconds, on a busy machine many

# A spec for each verifier that can be made without a problem at hand.
VERIFIERS = {
    "math": "math",
    "exact": "exact",
    "regex": "regex:.",
    "command": "command:true",
    **{name: name for name in ("code", "consensus", "program", "schema", "substitute")},
    "all": "all:[exact]",
    "any": "any:[exact]",
}

_CUDA = """
import json, torch
devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
names = [torch.cuda.get_device_name(number) for number in devices]
print(json.dumps({"build": torch.version.cuda, "devices": names}))
"""


@dataclass(frozen=True)
class Check:
    """One line: `state` is ok, warn or fail; `hint` says what to do about it."""

    name: str
    state: str
    detail: str
    hint: str = ""


def doctor_command(store: options.Store = None, as_json: options.AsJson = False) -> None:
    """Check that this machine has what kvgraft needs.

    Versions, CPU, memory, disks, store and cache folders, verifiers, CUDA. Loads no model.
    Status 1 when a line fails; warnings leave it 0.
    """
    with Watch("examining this machine") as watch:
        checks = list(examine(store, watch.restart))
    failed = [check for check in checks if check.state == FAIL]
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    if not as_json:
        rows = [[c.state, c.name, c.detail + (f" ({c.hint})" if c.hint else "")] for c in checks]
        write_table(["state", "what", "found"], rows)
    if failed:
        names = ", ".join(check.name for check in failed)
        hint = "; ".join(check.hint for check in failed if check.hint)
        raise Stopped(CheckFailed("this machine lacks something", where=names, hint=hint), document)
    if as_json:
        write_document(document)
    else:
        warnings = sum(check.state == WARN for check in checks)
        write_line(f"{len(checks)} checks, {counted(warnings, 'warning')}, none failed")


def examine(store: options.Store, say: Callable[[str], None]) -> Iterator[Check]:
    """All checks, one after the other; `say` hears of those that take long."""
    from kvgraft.engines.modelcache import cache_root

    yield from _versions()
    yield from _machine()
    folder = _wanted_store(store)
    yield from _folder("store folder", folder, "--store or KVGRAFT_STORE")
    yield _store_content(folder)
    yield from _folder("model cache", cache_root(), "KVGRAFT_CACHE")
    yield from _verifiers()
    say("asking torch for CUDA devices")
    yield _cuda()
    say("looking for energy meters")
    yield _energy()


def machine_checks(say: Callable[[str], None]) -> Iterator[Check]:
    """The checks that are of no folder: versions, CPU, memory, CUDA."""
    yield from _versions()
    yield from _machine()
    say("asking torch for CUDA devices")
    yield _cuda()


# --- software -----------------------------------------------------------------------------------


def _versions() -> Iterator[Check]:
    from kvgraft import __version__

    yield Check("python", OK, f"{platform.python_version()} at {sys.executable}")
    yield Check("kvgraft", OK, __version__)
    for package in ("numpy", "torch", "transformers"):
        try:
            yield Check(package, OK, version(package))
        except PackageNotFoundError:
            if package == "numpy":
                yield Check(package, FAIL, "not installed", "install kvgraft again")
            else:
                hint = "for real models: pip install 'kvgraft[transformers]'"
                yield Check(package, WARN, "not installed", hint)


def _verifiers() -> Iterator[Check]:
    from kvgraft.library.verify.specs import make_verifier

    for name, spec in VERIFIERS.items():
        try:
            judge = make_verifier(spec)
        except KvgraftError as error:
            yield Check(f"verifier {name}", WARN, error.what, error.hint)
        else:
            judge.close()
            yield Check(f"verifier {name}", OK, f"version {judge.version}")


def _cuda() -> Check:
    try:
        version("torch")
    except PackageNotFoundError:
        return Check("cuda", WARN, "unknown: torch is not installed")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CUDA],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            why = one_line(said[-1] if said else f"status {done.returncode}", 200)
            return Check("cuda", FAIL, f"torch cannot be imported: {why}", "install torch again")
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        return Check("cuda", WARN, f"unknown: torch did not answer ({type(error).__name__})")
    if found["devices"]:
        return Check("cuda", OK, f"{', '.join(found['devices'])} (torch for {found['build']})")
    built = f"torch is built for CUDA {found['build']}" if found["build"] else "torch has none"
    return Check("cuda", OK, f"no device ({built}); the CPU is used")


def _energy() -> Check:
    from kvgraft.energy import EnergyMeter

    meter = EnergyMeter()
    if meter.sources:
        return Check("energy", OK, meter.describe())
    return Check("energy", WARN, meter.describe(), "joules are not measured; --watts estimates")


# --- the machine --------------------------------------------------------------------------------


def _machine() -> Iterator[Check]:
    from kvgraft.identity import cpu_class

    yield Check("cpu class", OK, cpu_class())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS",) if name in os.environ]
    yield Check("threads", OK, ", ".join([f"{usable} of {os.cpu_count()} cores usable", *told]))
    free = free_memory_bytes()
    if free is None:
        yield Check("memory", WARN, "unknown: this system does not say")
    elif free < LOW_MEMORY_BYTES:
        yield Check("memory", WARN, f"{size(free)} free", "too little for most real models")
    else:
        yield Check("memory", OK, f"{size(free)} free")


def free_memory_bytes() -> int | None:
    """What can still be taken, by the system and by this container's limit; None if unknown."""
    known = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        known.append(int(fields["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        known.append(limit - int((group / "memory.current").read_text(encoding="ascii")))
    return max(0, min(known)) if known else None


def _folder(name: str, folder: Path, option: str) -> Iterator[Check]:
    """Whether a folder can be written, or made, and what space it has."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    detail = str(folder) if place == folder else f"{folder} (made at first use)"
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free
    except OSError as error:
        what = f"{folder} cannot be written: {error.strerror or error}"
        yield Check(name, FAIL, what, f"name another folder: {option}")
        return
    yield Check(name, OK, f"{detail}, writable")
    state = FAIL if free < NO_DISK_BYTES else WARN if free < LOW_DISK_BYTES else OK
    hint = "" if state == OK else f"free some space, or name another folder: {option}"
    yield Check(f"{name}: disk", state, f"{size(free)} free", hint)


def _wanted_store(store: Path | None) -> Path:
    from kvgraft.api import default_store

    return default_store() if store is None else store.expanduser()


def _store_content(folder: Path) -> Check:
    from kvgraft.api import LIBRARY_NAME, open_library
    from kvgraft.store.check import MARK_NAME, STORE_VERSION, open_local

    if not (folder / MARK_NAME).is_file():
        return Check("store", OK, f"nothing stored yet; format {STORE_VERSION} will be written")
    try:
        chunks = open_local(folder)
        try:
            packs = len(chunks.index.packs())
        finally:
            chunks.close()
        deposits = 0
        if (folder / LIBRARY_NAME).exists():
            with open_library(folder, read_only=True) as library:
                deposits = library.count()
    except KvgraftError as error:
        return Check("store", FAIL, str(error), error.hint)
    return Check("store", OK, f"format {STORE_VERSION}, {packs} packs, {deposits} active deposits")
