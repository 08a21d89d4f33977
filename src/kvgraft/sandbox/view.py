# ruff: noqa: PTH100, PTH102, PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH211
# No pathlib: `kernel` says why.
"""Which files a sandboxed program sees: an interpreter, its libraries, and a folder of its own."""

from __future__ import annotations

import os
import sys

from kvgraft.sandbox import kernel

WORK_FOLDER = "/sandbox"  # and /tmp is a link to it
WORK_FILES = 1024
DEVICES = ["/dev/null", "/dev/zero", "/dev/urandom"]
_NEW_ROOT = "/proc"  # is everywhere, and nothing that a program sees lies below it


def interpreter() -> str:
    """The interpreter that a virtual environment's is a link to."""
    return os.path.realpath(sys.executable)


def readable() -> list[str]:
    """Files and folders, none below another: what the interpreter is made of, the system's
    libraries, time zones, and this package's code for the inside. No program, no home."""
    beside = os.path.dirname(os.path.dirname(interpreter()))
    prefixes = {sys.base_prefix, sys.base_exec_prefix, beside}
    wanted = [
        interpreter(),
        os.path.dirname(os.__file__),
        *(f"{prefix}/{folder}" for prefix in sorted(prefixes) for folder in ("lib", "lib64")),
        *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store"),
        *("/etc/ld.so.cache", "/usr/share/zoneinfo"),
        os.path.dirname(os.path.abspath(__file__)),
    ]
    wanted = [os.path.abspath(path) for path in wanted if os.path.exists(path)]
    found: list[str] = []
    # Where one is a link, or lies behind one, what it leads to as well.
    for path in sorted({*wanted, *map(os.path.realpath, wanted)}):
        if not any(path.startswith(parent + "/") for parent in found):
            found.append(path)
    return found


def enter(work_bytes: int, owner: int) -> None:
    """Gives this process a mount namespace, in which `readable()` is read-only, `WORK_FOLDER` is
    empty, belongs to `owner` and holds at most `work_bytes`, and nothing else is.

    Raises:
        OSError: the system does not allow it.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("none", _NEW_ROOT, "tmpfs", 0, "mode=0755,size=1m,nr_inodes=4096")
    for path in readable() + DEVICES:
        _show(path)
    work = _NEW_ROOT + WORK_FOLDER
    os.mkdir(work)
    if not os.path.exists(_NEW_ROOT + "/tmp"):  # where this package lies below it, for one
        os.symlink(WORK_FOLDER, _NEW_ROOT + "/tmp")
    kernel.make_read_only(_NEW_ROOT)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    options = f"mode=0700,uid={owner},gid={owner},size={work_bytes},nr_inodes={WORK_FILES}"
    kernel.mount("none", work, "tmpfs", flags, options)
    kernel.change_root(_NEW_ROOT)
    os.chdir(WORK_FOLDER)


def _show(path: str) -> None:
    place = _NEW_ROOT + path
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), place)
        return
    if os.path.isdir(path):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(path, place, "", kernel.MS_BIND | kernel.MS_REC)
