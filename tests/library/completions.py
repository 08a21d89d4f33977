"""A server on this machine that answers as an OpenAI-compatible one does, or as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler", dict[str, Any]], None]


@dataclass
class Server:
    """`bodies` and `headers` are those of the requests; `answers` are given in turn, the last one
    again and again. `over` is set when the test ends: what hangs waits for it."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """Of the model behind it."""
        return f"{self.url}/v1#big"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    state: Server

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        number = len(self.state.bodies)
        self.state.bodies.append(body)
        self.state.headers.append(dict(self.headers))
        self.state.paths.append(self.path)
        answers = self.state.answers
        self.close_connection = True
        answers[min(number, len(answers) - 1)](self, body)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def serving(*answers: Answer) -> Iterator[Server]:
    state = Server(answers=list(answers))
    handler = type("Own", (Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def send(
    handler: Handler,
    data: bytes,
    *,
    status: int = 200,
    kind: str = "application/json",
    length: int | None = None,
    **headers: str,
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def choice(text: object, reason: object = "stop") -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "finish_reason": reason}


def completion(*texts: str, usage: object = None, **more: Any) -> Answer:
    """Says `texts`, however many were asked for."""
    return reply({"choices": [choice(text) for text in texts], "usage": usage, **more})


def reply(document: object, status: int = 200, **headers: str) -> Answer:
    data = json.dumps(document).encode()
    return lambda handler, body: send(handler, data, status=status, **headers)


def refusal(status: int, words: str = "no", **headers: str) -> Answer:
    return reply({"error": {"message": words}}, status, **headers)
