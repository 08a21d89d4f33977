"""The Linux calls that the standard library of Python 3.10 does not offer, by ctypes.

Imported in the guard's process, whose start is the greater part of what a sandbox costs: `signal`,
`pathlib`, `json` and `dataclasses` would each take as long as the interpreter itself.
"""

from __future__ import annotations

import ctypes
import os

SIGKILL = 9

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_AT_RECURSIVE = 0x8000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

# Numbers from 424 on are the same on every architecture.
_PIDFD_OPEN = 434
_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """Pointers as ctypes objects, numbers as int.

    Raises:
        OSError: the kernel says no.
    """
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), f"syscall {number}")


def prctl(option: int, *arguments: object) -> None:
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in arguments]
    zeros = [ctypes.c_ulong(0)] * (4 - len(words))
    _checked(_libc.prctl(ctypes.c_int(option), *words, *zeros), f"prctl {option}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            options.encode(),
        ),
        f"mount {target}",
    )


def make_read_only(target: str) -> None:
    """The mount at `target` and all below it: read-only, and no set-user-id there."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    syscall(
        _MOUNT_SETATTR,
        -100,  # AT_FDCWD
        ctypes.c_char_p(os.fsencode(target)),
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    )


def change_root(new_root: str) -> None:
    """`new_root`, a mount, becomes `/`, and what was there is no more. Leaves this process in no
    folder to be in: go to one."""
    os.chdir(new_root)
    # The old root is put on top of the new one and taken off: no folder has to be there for it.
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount2")


def set_host_name(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def default_interrupt() -> None:
    """Takes away Python's handler of SIGINT: the first process of a namespace hears no signal from
    within it but those that it handles."""
    _libc.signal.restype = ctypes.c_void_p
    _libc.signal(ctypes.c_int(2), None)


def pidfd_open(pid: int) -> int:
    return syscall(_PIDFD_OPEN, pid, 0)


def drop_capabilities() -> None:
    """None are left, and none come back through an exec (with no_new_privs set)."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "capset")


def _checked(result: int, what: str) -> int:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return int(result)
