"""A real browser for tests: Chromium without a window, spoken to over two pipes (the DevTools
protocol), so that no package and no network is needed for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"),
    *("--hide-scrollbars", "--force-device-scale-factor=1"),
)
# Chromium reads from descriptor 3 and writes to 4; what a pipe happens to be is moved there.
_START = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 64) for fd in sys.argv[1:3]]
for place, fd in zip((3, 4), high):
    os.dup2(fd, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """The one page of a browser. `events` has everything that it was told of."""

    def __init__(self, out: IO[bytes], back: IO[bytes]) -> None:
        self.events: list[dict[str, Any]] = []
        self._out, self._back = out, back
        self._last = 0
        self._session: str | None = None

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            heard = self._hear()
            if heard.get("id") == self._last:
                assert "error" not in heard, heard
                return dict(heard["result"])

    def _hear(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            assert byte, "the browser died"
            data += byte
        message: dict[str, Any] = json.loads(data)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path) -> None:
        """Load a file, to the end."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.until(lambda one: one["method"] == "Page.loadEventFired")

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until something was heard of which that holds."""
        while not any(holds(one) for one in self.events):
            self._hear()

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def look(self, width: int, height: int, *, dark: bool = False, print_: bool = False) -> None:
        """A window of this size, in a light or dark surrounding, or paper."""
        narrow = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=narrow,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="print" if print_ else "", features=[scheme])

    def shot(self, path: Path, *, whole: bool = False) -> None:
        """A picture of what is seen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def requests(self) -> list[str]:
        """The addresses of everything that was asked for."""
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """What would stand in the console."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [one for one in self.events if one["method"] in kinds]


def found_browser() -> str:
    """The path of a browser; skips the test where there is none."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium")


@contextmanager
def browser() -> Iterator[Page]:
    """A browser without any network, ended with the block."""
    program = found_browser()
    reads, writes = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        words = [program, *_ARGUMENTS, f"--user-data-dir={folder}", "--proxy-server=127.0.0.1:9"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # it has none for root
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(reads[0]), str(writes[1]), *words],
            pass_fds=(reads[0], writes[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads[0])
        os.close(writes[1])
        try:
            with os.fdopen(reads[1], "wb") as out, os.fdopen(writes[0], "rb") as back:
                page = Page(out, back)
                page.attach()
                page.call(
                    "Network.emulateNetworkConditions",
                    offline=True,
                    latency=0,
                    downloadThroughput=-1,
                    uploadThroughput=-1,
                )
                yield page
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
