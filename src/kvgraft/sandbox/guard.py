# ruff: noqa: PTH110, PTH123, PTH208
# No pathlib: `kernel` says why.
"""The guard: a process that starts one program in a sandbox, watches it, and ends all of it.

Run in a fresh interpreter (`run.start_words`), standard library only. Three processes, where the
system grants namespaces:

    guard    outside of the new process namespace; holds the limits of time, memory and processes
    first    process 1 of the namespace: builds the view of files; at its end the kernel ends all
    program  the interpreter that runs the program (`child`)

Without namespaces there is no `first`, and the program can start no second process.

Whatever there is to say is written to the report pipe in lines of a key and a value: "map", "held",
"missing", "failed", "over", "status", "cpu". The program holds no end of that pipe.
"""

from __future__ import annotations

import os
import resource
import select
import time

from kvgraft.sandbox import confine, kernel, view

# Runs `main` of one of this package's modules: of the packages only this folder can be seen inside,
# and outside their `__init__` would cost time.
LAUNCH = """\
import sys
sys.path[:] = filter(None, sys.path)
for name, path in (("kvgraft", []), ("kvgraft.sandbox", [sys.argv[1]])):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = path
__import__("kvgraft.sandbox." + sys.argv[2])
sys.modules["kvgraft.sandbox." + sys.argv[2]].main(sys.argv[3:])
"""
INSIDE_ID = 1000  # user and group of the program, in its own namespace
POLL_SECONDS = 0.02
OPEN_FILES = 64
STACK_BYTES = 8 * 1024 * 1024
ENVIRONMENT = {
    "HOME": view.WORK_FOLDER,
    "TMPDIR": view.WORK_FOLDER,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program on the same input: the same order of a set
    "MALLOC_ARENA_MAX": "2",  # each arena takes 64 MiB of address space, which is limited
}


class Job:
    """What `run` asks for, as `name=value` words: a JSON parser would double the start-up."""

    def __init__(self, words: list[str]) -> None:
        values = dict(word.split("=", 1) for word in words)
        self.package = values["package"]
        self.parent = int(values["parent"])
        self.deadline = float(values["deadline"])  # of the system's monotonic clock
        self.cpu_seconds = float(values["cpu_seconds"])
        self.memory_bytes = int(values["memory_bytes"])
        self.file_bytes = int(values["file_bytes"])
        self.processes = int(values["processes"])
        self.namespaces = values["namespaces"] == "1"
        self.require = {name for name in values["require"].split(",") if name}
        self.report = int(values["report"])
        self.control = int(values["control"])
        # Linux lists a process's children where it was built to (CONFIG_PROC_CHILDREN).
        self.metered = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        self.interpreter = view.interpreter()  # where it is a link, the link is not seen inside
        self.program_fds = [int(word) for word in values["program_fds"].split(",")]

    def say(self, key: str, value: str = "") -> None:
        # One write of less than a pipe's atomic size: lines of three processes do not mix.
        os.write(self.report, f"{key} {value[:300]}\n".encode("ascii", "replace"))


def main(words: list[str]) -> None:
    job = Job(words)
    os.set_inheritable(job.report, False)
    os.set_inheritable(job.control, False)
    _go_first()
    user = ""
    if job.namespaces:
        try:
            user = _own_namespaces(job)
        except OSError as error:
            job.say("failed", f"no namespaces: {error.strerror}")
            return
    kernel.prctl(kernel.PR_SET_PDEATHSIG, kernel.SIGKILL)
    if os.getppid() != job.parent:
        return  # it went before we were tied to it
    life, held_by_us = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(held_by_us)
        _start(job, user, life)
    os.close(life)
    over, status = _watch(job, first)
    if over:
        job.say("over", over)
    elif not user:
        job.say("status", str(os.waitstatus_to_exitcode(status)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    job.say("cpu", f"{used.ru_utime + used.ru_stime:.6f}")
    os._exit(0)  # at once: an interpreter takes milliseconds to clear up


def _go_first() -> None:
    """When the machine runs out of memory, this is what the kernel ends."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # a favour to the machine, and no limit of ours


def _own_namespaces(job: Job) -> str:
    """Who the program is to be, seen from outside: "fresh", a user that nobody else is, if we are
    root, whose processes nothing limits; else "own", ourselves."""
    kernel.unshare(
        kernel.CLONE_NEWUSER
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWUTS
    )
    job.say("map")  # only a process outside may say who we are inside
    answer = os.read(job.control, 16).decode()
    if answer not in ("fresh", "own"):
        raise PermissionError(1, "the user cannot be mapped")
    return answer


# --- the limits that the guard holds ------------------------------------------------------------


def _watch(job: Job, first: int) -> tuple[str, int]:
    """Waits for the end of `first`, or brings it about; what was over its limit, and how it ended.
    When this returns, nothing of the sandbox is alive."""
    end, over = select.poll(), ""
    end.register(kernel.pidfd_open(first), select.POLLIN)
    end.register(job.control, 0)  # its hang-up is told unasked: nobody waits for us any more
    while not over:
        left = job.deadline - time.monotonic()
        if end.poll(max(0, 1000 * min(POLL_SECONDS, left))):
            break
        over = "late" if left <= 0 else _over(job, first)
    os.kill(first, kernel.SIGKILL)
    return over, os.waitpid(first, 0)[1]


def _over(job: Job, first: int) -> str:
    tasks, memory_bytes, cpu_seconds = 0, 0, 0.0
    pids = _tree(first)
    for pid in pids:
        try:
            tasks += len(os.listdir(f"/proc/{pid}/task"))
            memory_bytes += int(_read(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
            # "pid (name) state ...": the name may hold anything.
            times = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[11:15]
            cpu_seconds += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            continue  # it has just ended
    if tasks > job.processes + 1:  # `first` is one of them, or else there is no limit but this
        return "processes"
    if cpu_seconds > job.cpu_seconds:
        return "cpu"
    if memory_bytes > job.memory_bytes and _own_bytes(pids) > job.memory_bytes:
        return "memory"
    return ""


def _own_bytes(pids: list[int]) -> int:
    """Memory of all `pids`, what they share counted once (a fork shares everything at first)."""
    total = 0
    for pid in pids:
        try:
            for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
        except PermissionError:
            total += int(_read(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
        except OSError:
            continue
    return total


def _tree(first: int) -> list[int]:
    pids = [first]
    for pid in pids:  # grows as we go
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                pids += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
        except OSError:
            continue
    return pids


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


# --- inside -------------------------------------------------------------------------------------


def _start(job: Job, user: str, life: int) -> None:
    """The forked process: `first`, or the program itself. Does not return."""
    try:
        if user:
            _first(job, user, life)
        else:
            _program(job, user, life)
    except BaseException as error:
        job.say("failed", f"{type(error).__name__}: {error}")
    finally:
        os._exit(1)


def _first(job: Job, user: str, life: int) -> None:
    kernel.default_interrupt()
    kernel.set_host_name("sandbox")
    view.enter(job.file_bytes, INSIDE_ID)
    if user == "fresh":
        os.setgroups([])
        os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
        os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    _end_with_guard(life)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # the program has our user id: it may not trace us
    program = os.fork()
    if program == 0:
        _program(job, user, life)
    while True:
        pid, status = os.waitpid(-1, 0)  # of orphans, too
        if pid == program:
            job.say("status", str(os.waitstatus_to_exitcode(status)))
            os._exit(0)


def _end_with_guard(life: int) -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, kernel.SIGKILL)
    gone = select.poll()
    gone.register(life, 0)  # a hang-up is told unasked
    if gone.poll(0):
        os._exit(1)  # it went before we were tied to it


def _program(job: Job, user: str, life: int) -> None:
    """Gives up everything, and becomes the interpreter that runs the program."""
    os.setsid()
    if not user:
        _end_with_guard(life)
        os.chdir("/")
    held = _confine(job, user)
    missing = job.require - held
    if missing:
        job.say("missing", ",".join(sorted(missing)))
        os._exit(1)
    for fd in job.program_fds:
        os.set_inheritable(fd, True)
    environment = dict(ENVIRONMENT)
    if "LD_LIBRARY_PATH" in os.environ:  # some interpreters find their own library by it
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    arguments = [job.interpreter, "-s", "-S", "-B", "-X", "utf8", "-c", LAUNCH, job.package]
    arguments += ["child", *map(str, job.program_fds)]
    job.say("held", ",".join(sorted(held)))
    os.execve(arguments[0], arguments, environment)


def _confine(job: Job, user: str) -> set[str]:
    """Takes from this process what the program shall not have; the names of what holds."""
    held, files = {"cpu"}, False
    if user:
        held |= {"user", "mount", "pid", "network", "ipc", "uts", "files", "tree"}
    # The kernel counts a user's processes by namespace, but memory by process only: where the guard
    # cannot add up, there is to be one process.
    forks = bool(user) and job.metered
    _limit(job, user if forks else "")
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    refused = list(confine.ALWAYS_REFUSED)
    if not user:
        devices = [path for path in view.DEVICES if os.path.exists(path)]
        files = confine.allow_files(view.readable(), devices)
        refused += confine.WITHOUT_NAMESPACES_REFUSED + confine.may_signal_only(os.getpid())
    elif not forks:
        refused += confine.SECOND_PROCESS_REFUSED
    if confine.refuse_calls(refused):
        held |= {"syscalls", "network"}
        if files:  # the filter holds what Landlock does not
            held.add("files")
        if not forks:
            held |= {"tree", "processes", "memory"}
    if forks:
        held |= {"processes", "memory"}
    return held


def _limit(job: Job, user: str) -> None:
    cpu_seconds = int(-(-job.cpu_seconds // 1))
    limits = [
        (resource.RLIMIT_AS, job.memory_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),  # hard as well as soft: it is a SIGKILL
        (resource.RLIMIT_FSIZE, job.file_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_STACK, STACK_BYTES),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_CORE, 0),
    ]
    if user:
        # `first` is counted as well, and the guard where it is the same user.
        limits.append((resource.RLIMIT_NPROC, job.processes + (1 if user == "fresh" else 2)))
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))
