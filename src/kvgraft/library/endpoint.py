"""A model behind an OpenAI-compatible server: POST {base}/chat/completions.

What comes back is judged like any attempt; a server has no state here to graft. Nothing it sends
is believed further than it has to be: size, time, type and every field are checked.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvgraft import limits
from kvgraft.decode import Sampling
from kvgraft.engines.base import Message
from kvgraft.errors import EndpointError, MissingExtra, UsageError
from kvgraft.library.attempts import (
    Attempt,
    Batch,
    OnFinish,
    OnStep,
    check_attempts,
    go_on,
    no_word,
)
from kvgraft.library.budget import Allowance
from kvgraft.library.endpoint_reply import Completion, parse_completion
from kvgraft.meter import Cost, Stopwatch
from kvgraft.reuse import Keep

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE = "KVGRAFT_ENDPOINT_KEY"
_SEED_BITS = 31  # what every server takes
_BUSY = frozenset({429, 500, 502, 503, 504})
_NOT_SO_MANY = frozenset({400, 422})  # what servers that take no `n` say to one
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def is_endpoint(name: str) -> bool:
    """Whether a model's name is a server's address."""
    return name.startswith(("http://", "https://"))


def check_endpoint(name: str) -> tuple[str, str]:
    """The base URL and the model of `http://HOST:PORT/v1#MODEL`.

    Raises:
        UsageError: it is not of that form.
        MissingExtra: `httpx` is not installed.
    """
    url, _, model = name.partition("#")
    try:
        parts = urlsplit(url)
        sound = is_endpoint(name) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if sound and (parts.username is not None or parts.password is not None):
        # Not shown: a name is printed and kept with what it made.
        raise UsageError(
            "an endpoint's address holds no name or password", hint=f"set {KEY_VARIABLE} instead"
        )
    if not sound or parts.query or not model.strip() or any(map(str.isspace, url)):
        raise UsageError(
            "this is no endpoint", where=name, hint="write http://HOST:PORT/v1#MODEL_NAME"
        )
    if importlib.util.find_spec("httpx") is None:
        raise MissingExtra(
            "an endpoint needs the package httpx",
            where=name,
            hint="pip install 'kvgraft[endpoint]'",
        )
    return url.rstrip("/"), model


@dataclass(frozen=True)
class _Reply:
    """What came back, whole. `retry_seconds`: how long the server wants to be left alone."""

    status: int
    content_type: str
    body: bytes
    retry_seconds: float | None


class _Lost(Exception):
    """No whole reply came: the connection failed, or the time was over. `asked`: the server may
    have got the request."""

    def __init__(self, why: str, *, timed_out: bool, asked: bool = True) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        self.asked = asked


class EndpointModel:
    """A `kvgraft.library.attempts.Model`. The key is the environment's `KVGRAFT_ENDPOINT_KEY`.

    `seconds` is the time for one reply; what was refused for a moment (429, 5xx, a connection that
    broke) is tried `tries` times in all.

    Raises:
        UsageError, MissingExtra: as `check_endpoint`; also a key that no header can carry.
    """

    def __init__(
        self,
        name: str,
        *,
        seconds: float = limits.ENDPOINT_SECONDS,
        tries: int = limits.ENDPOINT_TRIES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._base, self._model = check_endpoint(name)
        import httpx

        self._key = os.environ.get(KEY_VARIABLE, "")
        if not all(33 <= ord(char) <= 126 for char in self._key):
            raise UsageError(f"{KEY_VARIABLE} holds characters that no header can carry")
        self._seconds = seconds
        self._tries = tries
        self._sleep = sleep
        self._one_by_one = False  # once the server has refused several at a time
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.Client(
            headers=headers,
            follow_redirects=False,  # key and problem are for this server alone
            trust_env=urlsplit(self._base).hostname not in _LOOPBACK,  # no proxy to this machine
        )

    def attempt(
        self,
        messages: Sequence[Message],
        count: int,
        sampling: Sampling | None,
        max_new_tokens: int,
        *,
        keep: Keep = Keep.NOTHING,
        allowance: Allowance | None = None,
        on_finish: OnFinish = go_on,
        on_step: OnStep = no_word,
    ) -> Batch:
        """As `kvgraft.library.attempts.attempt`; there is nothing to `keep`.

        Several texts are asked for at once. A server that sends fewer is asked again for the rest,
        with another seed each time. Tokens are the server's own count, None where it gives none or
        where a reply was lost. An allowance of tokens may be passed by those of the first prompt.

        Raises:
            UsageError: as `check_attempts`.
            EndpointError: the server gave no usable answer.
        """
        check_attempts(count, sampling, max_new_tokens)
        allowance = allowance or Allowance()
        attempts: list[Attempt] = []
        cost, prompt_tokens = Cost(), 0  # before its first reply, only the server knows the prompt
        while len(attempts) < count:
            on_step(0, count - len(attempts))
            wanted = 1 if self._one_by_one else count - len(attempts)
            if not allowance.allows(prompt_tokens + wanted):
                break
            left, tokens = allowance.tokens_left, max_new_tokens
            if left is not None:
                tokens = min(tokens, (left - prompt_tokens) // wanted)
            body = self._body(messages, wanted, sampling, tokens, len(attempts))
            reply, lost = self._ask(body, allowance)
            if lost or reply is None:  # it may have computed something, nobody knows how much
                cost += _UNCOUNTED
                allowance.spend(None)
            if reply is None:
                break
            if reply.status in _NOT_SO_MANY and wanted > 1:
                self._one_by_one = True
                continue
            completion = self._completion(reply, wanted)
            cost += completion.cost
            prompt_tokens = completion.cost.prefill_tokens or 0
            allowance.spend(completion.cost.prefill_tokens)
            allowance.spend(completion.decode_tokens)
            clamped = tokens < max_new_tokens
            if self._take(completion, attempts, clamped=clamped, on_finish=on_finish):
                break
        cost.attempts = len(attempts)
        return Batch(tuple(attempts), cost)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def _body(
        self,
        messages: Sequence[Message],
        count: int,
        sampling: Sampling | None,
        max_new_tokens: int,
        number: int,
    ) -> dict[str, Any]:
        seed = sampling.seed if sampling is not None else 0
        return {
            "model": self._model,
            "messages": [{"role": one.role, "content": one.content} for one in messages],
            "n": count,
            "max_tokens": max_new_tokens,
            "temperature": sampling.temperature if sampling is not None else 0.0,
            "top_p": sampling.top_p if sampling is not None else 1.0,
            "seed": (seed + number) % 2**_SEED_BITS,
            "stream": False,
        }

    def _take(
        self,
        completion: Completion,
        attempts: list[Attempt],
        *,
        clamped: bool,
        on_finish: OnFinish,
    ) -> bool:
        """Add the texts to `attempts`; whether no more are wanted."""
        enough = False
        alone = len(completion.texts) == 1
        for text, finished in completion.texts:
            made = Attempt(
                text,
                finished,
                completion.decode_tokens if alone else None,
                given_up=clamped and not finished,
            )
            attempts.append(made)
            enough = enough or (finished and on_finish(len(attempts) - 1, made))
        return enough

    # --- one request --------------------------------------------------------------------------

    def _ask(self, body: dict[str, Any], allowance: Allowance) -> tuple[_Reply | None, bool]:
        """The reply, or None where the allowance ran out before it came; and whether one that was
        on its way was lost."""
        lost = False
        for tried in range(1, self._tries + 1):
            left = allowance.seconds_left
            seconds = self._seconds if left is None else min(self._seconds, left)
            pause: float | None = None
            final = tried == self._tries
            try:
                reply = self._post(body, seconds)
            except _Lost as failure:
                lost = lost or failure.asked
                error = self._error(str(failure))
                final = final or failure.timed_out  # another try would only add to its load
            else:
                if reply.status not in _BUSY:
                    return reply, lost
                error, pause = self._refusal(reply), reply.retry_seconds
            if allowance.allows() and final:
                raise error
            if pause is None:
                pause = 2.0 ** (tried - 1)
            left = allowance.seconds_left
            pause = min(pause, limits.MAX_ENDPOINT_PAUSE_SECONDS, *([] if left is None else [left]))
            if not final:
                self._sleep(pause)
            if not allowance.allows():
                break
        return None, lost

    def _post(self, body: dict[str, Any], seconds: float) -> _Reply:
        """One request.

        Raises:
            _Lost: no whole reply came within `seconds`.
            EndpointError: it is too long, or encoded.
        """
        import httpx

        watch = Stopwatch()
        connect = min(seconds, limits.ENDPOINT_CONNECT_SECONDS)
        timeout = httpx.Timeout(seconds, connect=connect)
        try:
            with self._client.stream(
                "POST", f"{self._base}/chat/completions", json=body, timeout=timeout
            ) as response:
                return self._read(response, watch, seconds)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            why = f"no connection: {error}"
            raise _Lost(why, timed_out=False, asked=False) from error
        except httpx.TimeoutException as error:
            raise _Lost(f"no answer within {seconds:g} s", timed_out=True) from error
        except (httpx.HTTPError, OSError) as error:
            why = f"the connection broke: {type(error).__name__}: {error}"
            raise _Lost(why, timed_out=False) from error

    def _read(self, response: httpx.Response, watch: Stopwatch, seconds: float) -> _Reply:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise self._error("the answer is compressed, though that was not asked for")
        body = bytearray()
        for block in response.iter_raw():
            body += block
            if len(body) > limits.MAX_ENDPOINT_REPLY_BYTES:
                raise self._error(
                    f"the answer is over {limits.MAX_ENDPOINT_REPLY_BYTES:,} bytes",
                    status=response.status_code,
                )
            if watch.seconds > seconds:
                raise _Lost(f"no whole answer within {seconds:g} s", timed_out=True)
        return _Reply(
            status=response.status_code,
            content_type=response.headers.get("content-type", ""),
            body=bytes(body),
            retry_seconds=_seconds(response.headers.get("retry-after", "")),
        )

    # --- what came back -----------------------------------------------------------------------

    def _completion(self, reply: _Reply, wanted: int) -> Completion:
        """What the reply holds, or an EndpointError."""
        if reply.status != 200:
            raise self._refusal(reply)
        kind = reply.content_type.partition(";")[0].strip().lower()
        if kind != "application/json":
            raise self._error(f"the answer is of type {kind[:60]!r}, not JSON", 200)
        try:
            return parse_completion(reply.body, wanted)
        except ValueError as error:
            raise self._error(f"the answer is no chat completion: {error}", 200) from error

    def _refusal(self, reply: _Reply) -> EndpointError:
        if 300 <= reply.status < 400:
            return self._error("it redirects, which is not followed", reply.status)
        said = reply.body.decode("utf-8", "replace")
        if self._key:
            said = said.replace(self._key, "***")  # some servers repeat what they refuse
        said = " ".join(said[:2000].split())[:200]
        return self._error(f"HTTP status {reply.status}: {said}", reply.status)

    def _error(self, what: str, status: int | None = None) -> EndpointError:
        return EndpointError(f"the endpoint failed: {what}", status=status, where=self.name)


_UNCOUNTED = Cost(prefill_tokens=None, reused_tokens=None, decode_tokens=None)


def _seconds(value: str) -> float | None:
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
