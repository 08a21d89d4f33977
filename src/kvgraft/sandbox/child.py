"""The inside of the sandbox: runs the program, and calls its functions when asked to.

Standard library only. Everything here is in the program's hands: it can change any of it, and
write to the channel what it likes. That gains it nothing. What it can say is a value, plain data,
and what value is right is decided by a process that it cannot reach.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes as long to import as the interpreter to start
if TYPE_CHECKING:
    from typing import Any

NAME = "program"  # of the module whose functions are called
MESSAGE_CHARS = 300


def main(words: list[str]) -> None:
    """`words`: the descriptors of the source and of what tells that we have started, and for calls
    those of the requests and replies."""
    source_fd, started_fd, *channel = map(int, words)
    with os.fdopen(source_fd, "rb") as file:
        source = file.read()
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # 5,000 digits are an answer; the CPU limit bounds the rest
    import builtins

    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment] # -S leaves them out
    os.write(started_fd, b".")
    os.close(started_fd)
    sys.argv[:] = [f"{NAME}.py"]
    if channel:
        _answer_calls(source, *channel)
    else:
        _run(source)


def _run(source: bytes) -> None:
    """As `python program.py` would, traceback and exit status included."""
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(source, f"{NAME}.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__ and error.__traceback__.tb_next  # without our own frame
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def _answer_calls(source: bytes, requests_fd: int, replies_fd: int) -> None:
    from kvgraft.sandbox import wire

    requests = os.fdopen(requests_fd, "r", encoding="ascii")
    replies = os.fdopen(replies_fd, "w", encoding="ascii")
    token = ""  # of the call that is being answered

    def send(key: str, value: Any) -> None:
        try:
            text = wire.dumps({"token": token, key: value})
        except wire.Unencodable as error:
            text = wire.dumps({"token": token, "none": f"gave {error}"})
        replies.write(text + "\n")
        replies.flush()

    def ask(name: str, arguments: Any, named: Any) -> Any:
        """For a judge of ours that runs in here: a call of another program's function."""
        text = wire.dumps({"token": token, "ask": [name, arguments, named]})
        replies.write(text + "\n")
        replies.flush()
        return wire.loads(requests.readline())

    module = type(sys)(NAME)
    sys.modules[NAME] = module
    module.__dict__["__ask__"] = ask
    try:
        exec(compile(source, f"{NAME}.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        send("none", f"at its start the program raised {_described(error)}")
        return
    send("ready", True)
    for line in requests:
        token, name, arguments, named = wire.loads(line)
        function = module.__dict__.get(name)
        if not callable(function):
            send("none", "the program defines no such function")
            continue
        try:
            key, value = "value", function(*arguments, **named)
        except BaseException as error:
            key, value = "none", f"raised {_described(error)}"
        send(key, value)
    # Every call was answered: neither threads nor handlers at exit are waited for.
    try:
        sys.stdout.flush()
    finally:
        os._exit(0)


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]
    except BaseException:
        return type(error).__name__
