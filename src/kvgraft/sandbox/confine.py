# ruff: noqa: PTH112
# No pathlib: `kernel` says why.
"""What a process gives up for good before it runs a program: system calls (seccomp), and files
(Landlock) where it has no mount namespace of its own.

The filter names what is refused, not what is allowed: an interpreter of tomorrow makes calls that
nobody listed. What it refuses is what reaches beyond the process: other processes, namespaces,
mounts, keys, sockets of every family, memory that no limit counts (memfd, System V), and parts of
the kernel that no program of this kind has a use for. See seccomp(2), landlock(7).
"""

from __future__ import annotations

import ctypes
import os
import struct

from kvgraft.sandbox import kernel

# --- seccomp ----------------------------------------------------------------------------------

EPERM, ENOSYS = 1, 38

# By machine: the audit number of its calling convention, and a column of _NUMBERS.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_NONE = -1  # the machine has no such call
_NUMBERS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, _NONE),
    "chown": (92, _NONE),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "file_setattr": (469, 469),
    "fork": (57, _NONE),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, _NONE),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, _NONE),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, _NONE),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmget": (29, 194),
    "socket": (41, 198),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, _NONE),
    "utimensat": (280, 88),
    "utimes": (235, _NONE),
    "vfork": (58, _NONE),
}

_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_CLONE_THREAD = 0x00010000

# A rule: the call, and for some a test of one argument's low half ("any" of these bits set,
# "none" of them, "is" this value, "not" this value) without which it is allowed.
Rule = tuple[str, str, int, int]


def _whole_calls(names: str) -> list[Rule]:
    return [(name, "", 0, 0) for name in names.split()]


ALWAYS_REFUSED: list[Rule] = [
    *_whole_calls(
        "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd "
        "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig "
        "fsmount fspick mount_setattr unshare setns keyctl add_key request_key bpf "
        "perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register memfd_create "
        "memfd_secret shmget msgget semget mq_open socket personality name_to_handle_at "
        "open_by_handle_at fanotify_init syslog modify_ldt clone3"
    ),
    ("clone", "any", 0, _NEW_NAMESPACES),
]

# Then ending the one process ends all, and the limits of one are the limits of all.
SECOND_PROCESS_REFUSED: list[Rule] = [
    *_whole_calls("fork vfork"),
    ("clone", "none", 0, _CLONE_THREAD),
]

# Where other processes of the same user can be seen: nothing that acts on one of them. And what
# Landlock does not cover: what is said about a file (its mode, owner, times, length).
WITHOUT_NAMESPACES_REFUSED: list[Rule] = [
    *SECOND_PROCESS_REFUSED,
    *_whole_calls(
        "tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal pidfd_open "
        "setpriority sched_setaffinity sched_setattr sched_setparam sched_setscheduler ioprio_set "
        "chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat "
        "utimensat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr "
        "removexattrat file_setattr truncate"
    ),
    ("prlimit64", "not", 0, 0),
    ("prctl", "is", 0, kernel.PR_SET_PDEATHSIG),  # its guard's end is to be its own
    # A descriptor can be told to send a signal, SIGKILL too, to another process of the user's.
    ("fcntl", "is", 1, 8),  # F_SETOWN
    ("fcntl", "is", 1, 15),  # F_SETOWN_EX
    ("ioctl", "is", 1, 0x8901),  # FIOSETOWN
    ("ioctl", "is", 1, 0x8902),  # SIOCSPGRP
]


def may_signal_only(pid: int) -> list[Rule]:
    return [("kill", "not", 0, pid), ("tgkill", "not", 0, pid)]


# Classic BPF: (code, jump if true, jump if false, operand) over struct seccomp_data.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_OTHER_CONVENTION = 0x40000000  # x32 calls carry this bit: the same calls by other numbers


def filter_program(machine: str, rules: list[Rule]) -> bytes | None:
    """The filter that refuses `rules` with EPERM; None for a machine without a table, and for a
    32-bit interpreter on one that has."""
    if machine not in _MACHINES or struct.calcsize("P") != 8:
        return None
    architecture, column = _MACHINES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit calls have numbers of their own
        (_LOAD, 0, 0, _AT_NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_CONVENTION),
        (_RETURN, 0, 0, _KILL),
    ]
    for name, test, argument, value in rules:
        number = _NUMBERS[name][column]
        if number == _NONE:
            continue
        # clone3 takes its flags in memory, where no filter can look; libc falls back to clone.
        refuse = (_RETURN, 0, 0, _ERROR | (ENOSYS if name == "clone3" else EPERM))
        if not test:
            code += [(_EQUAL, 0, 1, number), refuse]
            continue
        compare = _ANY_BIT if test in ("any", "none") else _EQUAL
        to_refuse = (0, 1) if test in ("any", "is") else (1, 0)
        code += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * argument),
            (compare, *to_refuse, value),
            refuse,
            (_LOAD, 0, 0, _AT_NUMBER),
        ]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def refuse_calls(rules: list[Rule]) -> bool:
    """This process and its children can make none of these calls any more. False: the machine is
    unknown, or the kernel has no filters.

    The process must have given up gaining privileges (`kernel.PR_SET_NO_NEW_PRIVS`)."""
    program = filter_program(os.uname().machine, rules)
    if program is None:
        return False
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    try:
        kernel.prctl(22, 2, ctypes.c_char_p(header))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    except OSError:
        return False
    return True


# --- Landlock ---------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
# How many rights over files each version knows, from version 1 on.
_RIGHTS = (13, 14, 15, 15, 16)
_SCOPES = 3  # from version 6 on: no abstract sockets, no signals to processes outside


def allow_files(readable: list[str], devices: list[str]) -> bool:
    """Of all files only these can be opened: `readable` files and folders to read and to execute,
    `devices` to read and write. False: the kernel has no Landlock."""
    try:
        version = kernel.syscall(_CREATE_RULESET, None, 0, 1)
        rights = (1 << _RIGHTS[min(version, len(_RIGHTS)) - 1]) - 1
        rules = struct.pack("=QQQ", rights, 0, _SCOPES if version >= 6 else 0)
        ruleset = kernel.syscall(_CREATE_RULESET, ctypes.c_char_p(rules), len(rules), 0)
        for path in readable:
            folder = _READ_DIR if os.path.isdir(path) else 0
            _allow(ruleset, path, _EXECUTE | _READ_FILE | folder)
        for path in devices:
            _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
        kernel.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    except OSError:
        return False
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, place)
    kernel.syscall(_ADD_RULE, ruleset, 1, ctypes.c_char_p(rule), 0)
    os.close(place)
