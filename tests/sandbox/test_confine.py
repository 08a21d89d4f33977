"""The filter refuses each call by itself: elsewhere Landlock or a namespace would hide that one is
missing from it."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kvgraft.sandbox import confine

SOURCES = Path(__file__).resolve().parents[2] / "src"
PRELUDE = """\
import ctypes, fcntl, os, resource, socket, sys, threading
from kvgraft.sandbox import confine, kernel
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    ctypes.set_errno(0)
    result = libc.syscall(*map(ctypes.c_long, (number, *words)))
    return result, ctypes.get_errno()
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
rules = [*confine.ALWAYS_REFUSED, *confine.WITHOUT_NAMESPACES_REFUSED]
assert confine.refuse_calls([*rules, *confine.may_signal_only(os.getpid())])
"""
# Without the filter none of these would do anything: the rest of their arguments is -1.
ARGUMENTS = {
    "clone": (0x7E020011, -1),
    "fcntl": (0, 8, 0),
    "ioctl": (0, 0x8901, 0),
    "kill": ("os.getppid()", 0),
    "msgget": (987654321, 0),
    "prctl": (1, -1),
    "prlimit64": ("os.getppid()", 99, 0, 0),
    "semget": (987654321, 0, 0),
    "shmget": (987654321, 0, 0),
    "tgkill": ("os.getppid()", "os.getppid()", 0),
    "tkill": ("os.getppid()", 0),
}
# Every call that is refused, wholly or with the arguments above, and its number on x86-64: written
# out, so that a slip in the table is seen. `fork` and `vfork` are left to the attacks.
REFUSED = """
add_key:248 bpf:321 chmod:90 chown:92 chroot:161 clone:56 clone3:435 fanotify_init:300
fchmod:91 fchmodat:268 fchmodat2:452 fchown:93 fchownat:260 fcntl:72 file_setattr:469
fremovexattr:199 fsconfig:431 fsetxattr:190 fsmount:432 fsopen:430 fspick:433 futimesat:261
io_uring_enter:426 io_uring_register:427 io_uring_setup:425 ioctl:16 ioprio_set:251 kcmp:312
keyctl:250 kill:62 lchown:94 lremovexattr:198 lsetxattr:189 memfd_create:319 memfd_secret:447
modify_ldt:154 mount:165 mount_setattr:442 move_mount:429 mq_open:240 msgget:68
name_to_handle_at:303 open_by_handle_at:304 open_tree:428 open_tree_attr:467
perf_event_open:298 personality:135 pidfd_getfd:438 pidfd_open:434 pidfd_send_signal:424
pivot_root:155 prctl:157 prlimit64:302 process_madvise:440 process_vm_readv:310
process_vm_writev:311 ptrace:101 removexattr:197 removexattrat:466 request_key:249
rt_sigqueueinfo:129 rt_tgsigqueueinfo:297 sched_setaffinity:203 sched_setattr:314
sched_setparam:142 sched_setscheduler:144 semget:64 setns:308 setpriority:141 setxattr:188
setxattrat:463 shmget:29 socket:41 syslog:103 tgkill:234 tkill:200 truncate:76 umount2:166
unshare:272 userfaultfd:323 utime:132 utimensat:280 utimes:235
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
    )


def test_every_refused_call_is_refused() -> None:
    x86 = os.uname().machine == "x86_64"
    numbers = {}
    for word in REFUSED.split():
        name, _, number = word.partition(":")
        numbers[name] = int(number) if x86 else confine._NUMBERS[name][1]
    calls = []
    for name, number in numbers.items():
        words = [*map(str, ARGUMENTS.get(name, ())), *["-1"] * 6][:6]
        calls.append(f"print({name!r}, *call({number}, {', '.join(words)}))")
    done = run("\n".join(calls))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{name} -1 {errno.ENOSYS if name == 'clone3' or number < 0 else errno.EPERM}"
        for name, number in numbers.items()
    ]


def test_what_is_not_refused_works() -> None:
    script = """
os.kill(os.getpid(), 0)
resource.getrlimit(resource.RLIMIT_CPU)
fcntl.fcntl(0, fcntl.F_GETFL)
a, b = socket.socketpair()
a.send(b"x"); assert b.recv(1) == b"x"
done = []
thread = threading.Thread(target=done.append, args=(1,)); thread.start(); thread.join()
assert done
print("works")
"""
    done = run(script)
    assert (done.stdout, done.stderr) == ("works\n", "")


@pytest.mark.parametrize("name", [8, 15])
def test_both_ways_to_own_a_descriptors_signals(name: int) -> None:
    script = "number = confine._NUMBERS['fcntl'][os.uname().machine != 'x86_64']\n"
    assert run(f"{script}print(*call(number, 0, {name}, 0))").stdout == f"-1 {errno.EPERM}\n"


def test_calls_of_another_convention_end_the_process() -> None:
    # getpid by its x32 number; without the filter it would be a call that is not there.
    if os.uname().machine == "x86_64":
        assert run("libc.syscall(ctypes.c_long(0x40000027))").returncode == -signal.SIGSYS
    program = confine.filter_program("x86_64", [])
    assert program is not None
    steps = [struct.unpack("=HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    assert steps[1] == (0x15, 1, 0, 0xC000003E)  # any other architecture falls to the next step
    assert steps[2][3] == steps[5][3] == 0x80000000  # which ends the process


def test_an_unknown_machine_has_no_filter() -> None:
    assert confine.filter_program("riscv64", []) is None


def test_numbers_of_new_calls_are_the_same_everywhere() -> None:
    for name, (x86, arm) in confine._NUMBERS.items():
        if max(x86, arm) >= 424:
            assert x86 == arm, name
