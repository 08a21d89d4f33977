"""Programs that try to get out of the sandbox, to outlive it, or to use up the machine.

Each prints ESCAPED and what it got where it got something. `HOST` is a dict of what lies outside:
`pid` of the process that started the sandbox, `port` of a listener on 127.0.0.1, `abstract` and
`path`: its Unix sockets, `secret`: a file that everybody may read and write, `folder`: where it
lies, `fifo`.

The sandbox may be broken: that is what this is for. So what an attack does where it succeeds must
harm nothing but the test's own folder and processes. No file of the system is written, truncated or
renamed (it is opened, and no more), nothing of the system is mounted over, no process of others is
signalled, and what multiplies or grows has an end of its own.
"""

from __future__ import annotations

PRELUDE = """\
import ctypes, os, resource, signal, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def tries(what, function, *arguments):
    # Prints an escape where the call succeeds.
    try:
        result = function(*arguments)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        return None
    if result != -1:
        print("ESCAPED", what, repr(result)[:80], flush=True)
    return result
def call(number, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return libc.syscall(ctypes.c_long(number), *words)
def fork():
    try:
        return os.fork()
    except OSError:
        return None
WORK = os.environ["TMPDIR"]
x86 = os.uname().machine == "x86_64"
"""

# --- outliving ----------------------------------------------------------------------------------

OUTLIVING = {
    "a forked sleeper": """
if fork() == 0:
    time.sleep(60)
print("done")
""",
    "a daemon of its own session": """
if fork() == 0:
    os.setsid()
    if fork() == 0:
        for fd in range(3):
            os.close(fd)
        time.sleep(60)
    os._exit(0)
print("done")
""",
    "a chain that forks faster than it can be listed": """
deadline = time.monotonic() + 5
if fork() == 0:
    while time.monotonic() < deadline:
        if fork():
            os._exit(0)
print("done")
""",
    "children deaf to every signal": """
for _ in range(5):
    if fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(60)
print("done")
""",
    "an interpreter of its own": """
try:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], {})
except OSError:
    pass
print("done")
""",
    "a thread that does not end": """
threading.Thread(target=time.sleep, args=(60,)).start()
""",
    "a handler at exit that does not end": """
import atexit
atexit.register(time.sleep, 60)
""",
    "an endless loop": "while True: pass",
    "an endless sleep": "time.sleep(10**6)",
    "deaf to the limit of CPU": """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass
""",
    "it stops itself": "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)",
    "an endless call in C": "pow(3, 10**8)",
    "it waits for what nobody writes": "r, w = os.pipe(); os.read(r, 1)",
    "it ends everybody it can": """
if os.getpid() < 10 and os.getppid() == 1:
    # In a namespace: there is nobody else.
    for target in (0, -1):
        if fork() == 0:
            try:
                os.kill(target, signal.SIGKILL)
            finally:
                os._exit(0)
    time.sleep(0.2)
    os.kill(-1, signal.SIGKILL)
else:
    for target in (0, -1, 1):
        tries("kill", os.kill, target, 0)
""",
    "every descriptor closed, and then a sleep": "os.closerange(0, 1024); time.sleep(60)",
}

# --- using up -----------------------------------------------------------------------------------

USING_UP = {
    "one huge allocation": "b = bytearray(10**11); print('ESCAPED', len(b))",
    "memory bit by bit": """
held = []
try:
    while True:
        held.append(bytearray(2**20))
        if len(held) > 600:
            print("ESCAPED", len(held)); break
except MemoryError:
    os._exit(3)
""",
    "memory of many children": """
for _ in range(12):
    if fork() == 0:
        b = bytearray(60 * 2**20)
        for i in range(0, len(b), 4096): b[i] = 1
        time.sleep(60)
b = bytearray(60 * 2**20)
time.sleep(60)
""",
    "memory shared between children": """
import mmap
held = []
try:
    while len(held) < 60:
        held.append(mmap.mmap(-1, 2**24))
        for i in range(0, 2**24, 4096): held[-1][i] = 1
    print("ESCAPED", len(held))
except (OSError, MemoryError):
    pass
""",
    "memory that is in no process": """
tries("memfd_create", call, 319 if x86 else 279, ctypes.c_char_p(b"x"), 0)
tries("memfd_secret", call, 447, 0)
tries("shmget", libc.shmget, 0, ctypes.c_size_t(2**30), 0o1600)
tries("msgget", libc.msgget, 0, 0o1600)
tries("mq_open", call, 240 if x86 else 180, ctypes.c_char_p(b"x"), 0o102, 0o600, None)
""",
    "a fork bomb": """
end = time.monotonic() + 4
while time.monotonic() < end:
    fork()
""",
    "forks counted": """
count = 0
for _ in range(300):
    pid = fork()
    if pid == 0:
        time.sleep(60)
    count += pid is not None
print("forked", count)
""",
    "threads counted": """
count = 0
threading.stack_size(65536)
for _ in range(300):
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
    except (RuntimeError, MemoryError):
        break
print("threads", count, flush=True)
time.sleep(0.3)
os._exit(0)
""",
    "CPU of many children": """
for _ in range(4):
    if fork() == 0:
        while True: pass
while True: pass
""",
    "standard output without end": """
block = b"x" * 2**20
while True: os.write(1, block)
""",
    "standard error without end": """
block = b"x" * 2**20
while True: os.write(2, block)
""",
    "one large file": """
try:
    with open(WORK + "/large", "wb") as file:
        for n in range(100): file.write(bytes(2**20)); file.flush()
    print("ESCAPED", n)
except OSError:
    pass
""",
    "a file that is long and empty": """
def long():
    with open(WORK + "/long", "wb") as file: file.truncate(2**40)
tries("truncate", long)
""",
    "many large files": """
total = 0
try:
    for n in range(100):
        with open(f"{WORK}/{n}", "wb", buffering=0) as file:
            total += file.write(bytes(2**20))
    print("ESCAPED", total)
except OSError:
    print("wrote", total)
""",
    "many small files": """
count = 0
try:
    for count in range(10**5):
        open(f"{WORK}/{count}", "w").close()
    print("ESCAPED", count)
except OSError:
    pass
""",
    "folders in folders": """
try:
    for depth in range(10**5):
        os.mkdir("d"); os.chdir("d")
    print("ESCAPED", depth)
except OSError:
    pass
""",
    "every descriptor": """
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    print("ESCAPED" if len(held) > 64 else "ok", len(held))
""",
    "deep recursion": "f = lambda: f()\nf()",
    "recursion down to the metal": """
sys.setrecursionlimit(10**9)
class A:
    def __getattr__(self, name): return getattr(self, name + "x")
A().x
""",
    "a large integer printed": "sys.set_int_max_str_digits(0); print(3 ** 10**7)",
    "limits raised again": """
for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE,
             resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
    tries("setrlimit", resource.setrlimit, kind, (resource.RLIM_INFINITY,) * 2)
""",
    "a crash": "ctypes.string_at(0)",
    "an abort": "os.abort()",
    "pipes filled": """
import fcntl
try:
    while True:
        r, w = os.pipe()
        os.set_blocking(w, False)
        try: fcntl.fcntl(w, 1031, 2**20)
        except OSError: pass
        os.write(w, bytes(2**20))
except OSError:
    pass
""",
}

# --- getting out --------------------------------------------------------------------------------

GETTING_OUT = {
    "files of the host read": """
def read(path):
    with open(path, "rb") as file: return file.read(40)
for path in (HOST["secret"], "/etc/passwd", "/etc/hostname", "/proc/version", "/sys/kernel/notes",
             f"/proc/{HOST['pid']}/environ", f"/proc/{HOST['pid']}/cmdline",
             f"/proc/{os.getppid()}/environ", f"/proc/{os.getppid()}/mem", "/proc/1/environ",
             f"/proc/{HOST['pid']}/root{HOST['secret']}", f"/proc/1/root{HOST['secret']}",
             "/proc/self/environ", "/dev/mem", "/dev/sda", "/dev/vda", "/dev/kmsg"):
    tries(path, read, path)
for path in ("/home", "/var", "/boot", "/proc", "/proc/self", "/sys", "/run",
             os.path.dirname(HOST["secret"])):
    tries(path, os.listdir, path)
def others(path):  # the system's interpreter, which runs this, may lie there, and alone
    names = [name for name in os.listdir(path) if not name.startswith("python3")]
    if not names: raise OSError("nothing else is there")
    return names
tries("/usr/bin", others, "/usr/bin")
""",
    "files of the host written": """
def write(path):
    with open(path, "w") as file: file.write("x")
ours = sys.modules["kvgraft.sandbox.child"].__file__
for path in (ours, os.__file__, sys.executable, "/etc/passwd", "/dev/mem", "/proc/self/mem",
             HOST["secret"]):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        tries(path, os.open, path, flags)
for path in (os.path.dirname(ours), os.path.dirname(os.__file__), "/", "/etc", "/dev/shm", "/home",
             "/root", "/var/tmp", "/usr/lib", HOST["folder"]):
    # A file without a name: nothing of it is left.
    tries(path, os.open, path, os.O_TMPFILE | os.O_RDWR)
secret, new = HOST["secret"], HOST["folder"] + "/new"
for path in (secret, new):
    tries(path, write, path)
    tries("mkdir", os.mkdir, path + ".folder")
    tries("symlink", os.symlink, "/", path + ".link")
    tries("mkfifo", os.mkfifo, path + ".fifo")
tries("truncate", os.truncate, secret, 0)
tries("chmod", os.chmod, secret, 0o777)
tries("utime", os.utime, secret, (0, 0))
tries("chown", os.chown, secret, os.getuid(), os.getgid())
tries("setxattr", os.setxattr, secret, "user.x", b"x")
tries("rename", os.rename, secret, secret + ".old")
tries("unlink", os.unlink, secret)
""",
    "links out of the work folder": """
def read(path):
    with open(path, "rb") as file: return file.read(40)
for name, target in (("a", HOST["secret"]), ("b", "/proc/self/root/etc/passwd"),
                     ("c", "../../../.." + HOST["secret"])):
    try: os.symlink(target, WORK + "/" + name)
    except OSError: pass
    tries(name, read, WORK + "/" + name)
tries("hard link", os.link, HOST["secret"], WORK + "/hard")
tries("dots", read, WORK + "/../../../.." + HOST["secret"])
""",
    "secrets in the environment": """
known = {"HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "MALLOC_ARENA_MAX", "LD_LIBRARY_PATH",
         "LC_CTYPE"}
if set(os.environ) - known: print("ESCAPED", sorted(set(os.environ) - known))
""",
    "descriptors that were left open": """
for fd in range(3, 1024):
    tries("fd", os.fstat, fd)
for fd in range(3):
    if os.isatty(fd): print("ESCAPED tty")
tries("tty", os.open, "/dev/tty", os.O_RDWR)
""",
    "the network": """
import socket
tries("tcp", socket.create_connection, ("127.0.0.1", HOST["port"]), 1)
for family in range(50):
    for kind in (1, 2, 3, 5):
        tries(f"socket {family} {kind}", call, 41 if x86 else 198, family, kind, 0)
def connect(name):
    s = socket.socket(socket.AF_UNIX); s.connect(name); return "connected"
tries("abstract", connect, "\\0" + HOST["abstract"])
tries("path", connect, HOST["path"])
tries("fifo", os.open, HOST["fifo"], os.O_RDWR)
""",
    "signals to those outside": """
for pid in {os.getppid(), HOST["pid"]} - {0, os.getpid()}:
    for number in (0, signal.SIGKILL, signal.SIGSTOP):
        try:
            os.kill(pid, number)
        except OSError:
            continue
        if pid != 1: print("ESCAPED", pid, number)
    tries("pidfd", call, 434, HOST["pid"], 0)
    tries("sigqueue", call, 129 if x86 else 138, HOST["pid"], 9, ctypes.create_string_buffer(128))
    tries("tkill", call, 200 if x86 else 130, HOST["pid"], 9)
""",
    "signals to the first process": """
if os.getpid() < 10 and os.getppid() == 1:  # in a namespace, where it is the sandbox's
    for number in range(1, 65):
        try: os.kill(1, number)
        except OSError: pass
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        try: resource.prlimit(1, kind, (0, 0))
        except OSError: pass
    time.sleep(0.1)
""",
    "a signal by way of a descriptor": """
import fcntl
r, w = os.pipe()
fcntl.fcntl(r, 10, signal.SIGKILL)
tries("F_SETOWN", fcntl.fcntl, r, fcntl.F_SETOWN, HOST["pid"])
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
os.write(w, b"x")
time.sleep(0.1)
""",
    "another process's memory": """
for pid in {os.getppid(), HOST["pid"]} - {0}:
    tries("ptrace attach", libc.ptrace, 16, pid, 0, 0)
    tries("ptrace seize", libc.ptrace, 0x4206, pid, 0, 0)
    buffer = ctypes.create_string_buffer(8)
    iov = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_size_t * 2)(0x400000, 8)
    tries("process_vm_readv", libc.process_vm_readv, pid, iov, 1, there, 1, 0)
    tries("kcmp", call, 312 if x86 else 272, pid, os.getpid(), 0, 0, 0)
    tries("mem", os.open, f"/proc/{pid}/mem", os.O_RDWR)
tries("ptrace me", libc.ptrace, 0, 0, 0, 0)
""",
    "another process's limits": """
tries("prlimit", resource.prlimit, HOST["pid"], resource.RLIMIT_NOFILE, (0, 0))
tries("priority", os.setpriority, os.PRIO_PROCESS, HOST["pid"], 19)
tries("affinity", os.sched_setaffinity, HOST["pid"], {0})
tries("scheduler", os.sched_setscheduler, HOST["pid"], os.SCHED_IDLE, os.sched_param(0))
""",
    "namespaces, mounts, another root": """
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    tries(f"unshare {flag:x}", libc.unshare, flag)
    tries(f"clone {flag:x}", call, 56 if x86 else 220, flag | 17, 0, 0, 0, 0)
tries("unshare time", libc.unshare, 0x80)
tries("clone3", call, 435, ctypes.create_string_buffer(88), 88)
try: os.mkdir(WORK + "/m")
except OSError: pass
for target in map(str.encode, (WORK, WORK + "/m", HOST["folder"])):
    tries("tmpfs", libc.mount, b"none", target, b"tmpfs", 0, b"")
    tries("proc", libc.mount, b"none", target, b"proc", 0, b"")
    tries("bind", libc.mount, b"/", target, b"", 4096, None)
    tries("remount", libc.mount, b"none", target, b"", 32 | 4096, None)
    tries("umount", libc.umount2, target, 2)
    tries("mount_setattr", call, 442, -100, ctypes.c_char_p(target), 0x8000,
          (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)
    tries("open_tree", call, 428, -100, ctypes.c_char_p(target), 1)
    tries("pivot_root", libc.pivot_root, target, target)
    tries("chroot", os.chroot, target)
tries("fsopen", call, 430, ctypes.c_char_p(b"tmpfs"), 0)
for kind in ("mnt", "net", "pid", "user"):
    tries("setns", lambda: libc.setns(os.open(f"/proc/{HOST['pid']}/ns/{kind}", os.O_RDONLY), 0))
tries("mknod", os.mknod, WORK + "/device", 0o600 | 0o020000, os.makedev(1, 1))
tries("by handle", call, 304 if x86 else 265, -100, ctypes.create_string_buffer(64), 0)
""",
    "more rights": """
for user in (0, 65534):
    tries("setuid", os.setresuid, user, user, user) if os.getuid() != user else None
    tries("setgid", os.setresgid, user, user, user) if os.getgid() != user else None
tries("setgroups", os.setgroups, [0])
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
held = (ctypes.c_uint32 * 6)()
if libc.capget(header, held) == 0 and any(held[i] for i in (0, 1, 3, 4)): print("ESCAPED", *held)
tries("capset", libc.capset, header, (ctypes.c_uint32 * 6)(*[2**32 - 1] * 6))
tries("exec", os.execv, "/usr/bin/su", ["su"])
tries("exec", os.execv, "/bin/sh", ["sh", "-c", "echo ESCAPED"])
name = os.uname().nodename.encode()
tries("host name", libc.sethostname, name, len(name))
tries("clock", time.clock_settime, time.CLOCK_REALTIME, time.time())
if libc.prctl(39, 0, 0, 0, 0) != 1: print("ESCAPED new privileges")
""",
    "parts of the kernel": """
buffer = ctypes.create_string_buffer(256)
tries("bpf", call, 321 if x86 else 280, 0, buffer, 72)
tries("perf", call, 298 if x86 else 241, buffer, 0, -1, -1, 0)
tries("userfaultfd", call, 323 if x86 else 282, 1)
tries("io_uring", call, 425, 4, buffer)
tries("add_key", call, 248 if x86 else 217, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"k"),
      ctypes.c_char_p(b"v"), 1, -3)
tries("keyctl", call, 250 if x86 else 219, 0, -3, 1)
tries("syslog", call, 103 if x86 else 116, 3, buffer, 255)
tries("personality", call, 135 if x86 else 92, 0x0040000)
tries("fanotify", call, 300 if x86 else 262, 0, 0)
""",
    "calls by other numbers": """
if x86 and fork() in (0, None):
    # getpid by its x32 number: a filter that knows one set of numbers only is no filter.
    tries("x32", call, 0x40000000 + 39)
""",
}

END = "to the end"
GETTING_OUT = {name: f"{source}print({END!r})\n" for name, source in GETTING_OUT.items()}
EVERY = {**OUTLIVING, **USING_UP, **GETTING_OUT}
