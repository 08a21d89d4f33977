"""Runs programs in the sandbox as one user on one system might, one JSON line in, one out.

    python world.py WORLD SOURCES

WORLD is what this process gives up first: "here" (nothing), "no-namespaces", "no-landlock" (neither
of both), "no-filters" (neither namespaces nor seccomp), "no-capabilities" (a root without its
rights), "user" (an ordinary user). SOURCES is the folder that kvgraft is in.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ORDINARY_USER = 54321
SURVIVAL_SECONDS = 0.5


def main() -> None:
    world, sources = sys.argv[1:]
    if world == "user" and os.geteuid() == 0:
        become_user(sources)
    sys.path.insert(0, sources)
    from kvgraft.errors import KvgraftError
    from kvgraft.sandbox import confine, kernel
    from kvgraft.sandbox.run import Limits, run_program

    if world == "no-capabilities":
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)  # or else root gets them back by an exec
    if world in ("no-namespaces", "no-landlock", "no-filters"):
        confine._NUMBERS["landlock"] = (444, 444)
        refused = [("unshare", "", 0, 0)]
        refused += [("landlock", "", 0, 0)] if world == "no-landlock" else []
        refused += [("prctl", "is", 0, 22)] if world == "no-filters" else []
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        assert confine.refuse_calls(refused)
    # Whatever outlives its guard comes to us.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        try:
            keep = {key: request[key] for key in ("stdin", "require") if key in request}
            ran = run_program(request["source"], limits=Limits(**request["limits"]), **keep)
            reply = dataclasses.asdict(ran)
        except KvgraftError as error:
            reply = {"error": error.as_dict(), "missing": getattr(error, "missing", ())}
        reply |= {"elapsed": time.monotonic() - started, "survivors": survivors()}
        print(json.dumps(reply), flush=True)


def survivors() -> list[str]:
    """Our descendants that are still alive after a moment; what is killed takes one to go."""
    deadline = time.monotonic() + SURVIVAL_SECONDS
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid() and state != "Z":
                    found.append(stat.parent.name)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def become_user(sources: str) -> None:
    """Starts again as an ordinary user. The interpreter and the sources may lie where only root
    gets to: one is shown elsewhere, the others are copied."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0, "a root that cannot mount cannot play an ordinary user"
    assert libc.mount(b"none", b"/", None, 1 << 18 | 16384, None) == 0
    program = Path(sys.executable).resolve().relative_to(sys.base_prefix)
    python, own = folder / "python", folder / "sources"
    python.mkdir()
    assert libc.mount(os.fsencode(sys.base_prefix), os.fsencode(python), None, 4096, None) == 0
    # The sources are the user's own, so that only the sandbox keeps them from being changed.
    for file in ("__init__.py", "errors.py", "limits.py"):
        (own / "kvgraft").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(sources, "kvgraft", file), own / "kvgraft")
    shutil.copytree(Path(sources, "kvgraft/sandbox"), own / "kvgraft/sandbox")
    for path in (own, *own.rglob("*")):
        os.chown(path, ORDINARY_USER, ORDINARY_USER)
    script = folder / "world.py"
    script.write_text(Path(__file__).read_text())
    done = subprocess.run(
        [python / program, "-B", script, "user", own],
        env={"LD_LIBRARY_PATH": str(python / "lib")},
        user=ORDINARY_USER,
        group=ORDINARY_USER,
        extra_groups=[],
    )
    script.unlink()
    shutil.rmtree(own)
    assert libc.umount2(os.fsencode(python), 0) == 0
    python.rmdir()  # never a tree: it would be the one that was shown here
    folder.rmdir()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
