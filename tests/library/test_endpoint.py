"""A model behind a server: what is asked, what is believed, and every way in which it can fail."""

from __future__ import annotations

import gzip
import json
import socket
from contextlib import suppress
from typing import Any

import httpx
import pytest

from kvgraft import limits
from kvgraft.decode import Sampling
from kvgraft.engines.base import Message
from kvgraft.errors import EndpointError, UsageError
from kvgraft.library.attempts import Attempt, Batch
from kvgraft.library.budget import Allowance, Budget
from kvgraft.library.endpoint import KEY_VARIABLE, EndpointModel
from library.completions import (
    Handler,
    Server,
    choice,
    completion,
    refusal,
    reply,
    send,
    serving,
)

ASKED = [Message("system", "Be brief."), Message("user", "What is 2 + 2?")]
DRAW = Sampling(0.7, 0.9, seed=5)
USAGE = {"prompt_tokens": 20, "completion_tokens": 6}
SOON = 0.3  # seconds for a reply that never comes


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of the user's; and a proxy that is not there, since this machine needs none."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pauses() -> list[float]:
    """How long the client would have waited, each time."""
    return []


def opened(server: Server, pauses: list[float] | None = None, **options: Any) -> EndpointModel:
    sleep = (pauses if pauses is not None else []).append
    return EndpointModel(server.name, sleep=sleep, **options)


def ask(model: EndpointModel, count: int = 1, **options: Any) -> Batch:
    sampling = options.pop("sampling", DRAW)
    try:
        return model.attempt(ASKED, count, sampling, options.pop("tokens", 64), **options)
    finally:
        model.close()
        model.close()


def texts(batch: Batch) -> list[str]:
    return [attempt.text for attempt in batch.attempts]


# --- what is asked ----------------------------------------------------------------------------


def test_one_request_asks_for_all_samples() -> None:
    with serving(completion("4", "5", "4", usage=USAGE)) as server:
        batch = ask(opened(server), 3)
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies == [
        {
            "model": "big",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What is 2 + 2?"},
            ],
            "n": 3,
            "max_tokens": 64,
            "temperature": 0.7,
            "top_p": 0.9,
            "seed": 5,
            "stream": False,
        }
    ]
    assert "Authorization" not in server.headers[0]
    assert batch.attempts == tuple(Attempt(text, True, None) for text in ("4", "5", "4"))
    cost = batch.cost
    assert (cost.attempts, cost.prefill_tokens, cost.decode_tokens) == (3, 20, 6)
    assert (cost.reused_tokens, cost.model_flops, cost.joules) == (None, None, None)


def test_a_greedy_attempt_has_no_chance_in_it() -> None:
    with serving(completion("4", usage=USAGE)) as server:
        batch = ask(opened(server), sampling=None)
    (body,) = server.bodies
    assert (body["n"], body["temperature"], body["top_p"]) == (1, 0.0, 1.0)
    assert batch.attempts == (Attempt("4", True, 6),)


@pytest.mark.parametrize("first", [completion("a", usage=USAGE), refusal(400), refusal(422)])
def test_a_server_that_gives_one_at_a_time_is_asked_again(first: Any) -> None:
    with serving(first, *(completion(text, usage=USAGE) for text in "abc")) as server:
        batch = ask(opened(server), 3)
    assert len(batch.attempts) == batch.cost.attempts == 3
    asked = [(body["n"], body["seed"]) for body in server.bodies]
    if len(asked) == 3:
        assert asked == [(3, 5), (2, 6), (1, 7)]
        assert texts(batch) == ["a", "a", "b"]
    else:  # it refused to give several, and is not asked for them again
        assert asked == [(3, 5), (1, 5), (1, 6), (1, 7)]
        assert texts(batch) == ["a", "b", "c"]
    assert (batch.cost.prefill_tokens, batch.cost.decode_tokens) == (60, 18)


def test_more_than_was_asked_for_is_not_taken() -> None:
    with serving(completion("a", "b", "c", usage=USAGE)) as server:
        batch = ask(opened(server), 2)
    assert texts(batch) == ["a", "b"]
    assert batch.cost.decode_tokens == 6


def test_what_passes_ends_the_batch() -> None:
    seen: list[tuple[int, str]] = []

    def judge(number: int, attempt: Attempt) -> bool:
        seen.append((number, attempt.text))
        return attempt.text == "b"

    with serving(completion("a"), completion("b"), completion("c")) as server:
        batch = ask(opened(server), 5, on_finish=judge)
    assert seen == [(0, "a"), (1, "b")]
    assert texts(batch) == ["a", "b"]
    assert len(server.bodies) == 2
    seen.clear()
    with serving(completion("b", "c")) as server:
        ask(opened(server), 2, on_finish=judge)
    assert seen == [(0, "b")]


@pytest.mark.parametrize(
    ("count", "sampling"), [(0, DRAW), (limits.MAX_ATTEMPTS + 1, DRAW), (2, None)]
)
def test_what_is_no_batch_is_not_asked(count: int, sampling: Sampling | None) -> None:
    with serving(completion("a")) as server, pytest.raises(UsageError):
        ask(opened(server), count, sampling=sampling)
    assert server.bodies == []


def test_a_large_seed_becomes_one_that_servers_take() -> None:
    with serving(completion("a")) as server:
        ask(opened(server), sampling=Sampling(seed=2**64 - 1))
    assert 0 <= server.bodies[0]["seed"] < 2**31


# --- the key ----------------------------------------------------------------------------------


def test_the_key_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with serving(completion("a")) as server:
        ask(opened(server))
    assert server.headers[0]["Authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize("status", [401, 500])
@pytest.mark.parametrize("before", [0, 195])  # where the message is cut, too
def test_a_key_that_the_server_repeats_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, status: int, before: int
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
    words = "x" * before + "sk-secret is no key"
    with serving(refusal(status, words)) as server, pytest.raises(EndpointError) as failed:
        ask(opened(server))
    assert "sk-s" not in repr(failed.value.as_dict())
    assert failed.value.status == status


@pytest.mark.parametrize("key", ["two words", "a\nb", "schlüssel"])
def test_a_key_that_no_header_carries_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(UsageError) as refused:
        EndpointModel("http://127.0.0.1:1/v1#m")
    assert key not in str(refused.value)


# --- what is believed -------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls", None, 1, "STOP"])
def test_only_a_stop_is_an_end(reason: object) -> None:
    seen: list[int] = []
    document = {"choices": [choice("Answer: 4", reason)]}
    with serving(reply(document)) as server:
        batch = ask(opened(server), on_finish=lambda number, attempt: bool(seen.append(number)))
    assert batch.attempts == (Attempt("Answer: 4", False, None),)
    assert seen == []


def test_a_message_without_text_is_an_attempt_without_an_answer() -> None:
    with serving(reply({"choices": [choice(None, "stop")]})) as server:
        assert ask(opened(server)).attempts == (Attempt("", False, None),)


def test_half_a_character_is_none_and_two_halves_are_one() -> None:
    data = json.dumps({"choices": [choice("\ud83d\ude00 \ud83d")]}).encode()
    assert data.isascii()
    with serving(lambda handler, body: send(handler, data)) as server:
        (text,) = texts(ask(opened(server)))
    assert text == "\U0001f600 \ufffd"
    text.encode()


def test_a_text_over_the_limit_is_cut_and_did_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TRACE_CHARS", 4)
    with serving(completion("12345", "1234")) as server:
        batch = ask(opened(server), 2)
    assert batch.attempts == (Attempt("1234", False, None), Attempt("1234", True, None))


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, (None, None, None)),
        ("many", (None, None, None)),
        ({"prompt_tokens": 20}, (20, None, None)),
        ({"prompt_tokens": -1, "completion_tokens": True}, (None, None, None)),
        ({"prompt_tokens": 2.5, "completion_tokens": 10**30}, (None, None, None)),
        (USAGE, (20, None, 6)),
        ({**USAGE, "prompt_tokens_details": None}, (20, None, 6)),
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 16}}, (4, 16, 6)),
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}, (20, 0, 6)),
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 21}}, (20, None, 6)),
    ],
)
def test_tokens_are_the_servers_count_or_unknown(usage: object, tokens: tuple[Any, ...]) -> None:
    with serving(completion("a", usage=usage)) as server:
        cost = ask(opened(server)).cost
    assert (cost.prefill_tokens, cost.reused_tokens, cost.decode_tokens) == tokens


def test_what_one_reply_does_not_count_the_sum_does_not_know() -> None:
    with serving(completion("a", usage=USAGE), completion("b")) as server:
        cost = ask(opened(server), 2).cost
    assert (cost.prefill_tokens, cost.decode_tokens) == (None, None)


# --- what is refused --------------------------------------------------------------------------


def broken(data: bytes, **options: Any) -> Any:
    return lambda handler, body: send(handler, data, **options)


WHOLE = json.dumps({"choices": [choice("4")]}).encode()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (broken(b""), "not JSON"),
        (broken(WHOLE[:-5]), "not JSON"),
        (broken(b"\xff\xfe{}"), "not JSON"),
        (broken(b"[" * 100_000), "not JSON"),
        (broken(b'{"choices": ' + b"1" * 5000 + b"}"), "not JSON"),
        (reply([]), "no choices"),
        (reply({}), "no choices"),
        (reply({"choices": []}), "no choices"),
        (reply({"choices": "4"}), "no choices"),
        (reply({"choices": ["4"]}), "no message"),
        (reply({"choices": [{"text": "4"}]}), "no message"),
        (reply({"choices": [choice(["4"])]}), "not text"),
        (reply({"choices": [choice(4)]}), "not text"),
        (broken(WHOLE, kind="text/html"), "'text/html', not JSON"),
        (broken(WHOLE, kind="text/event-stream"), "not JSON"),
        (broken(WHOLE, kind=""), "not JSON"),
        (broken(gzip.compress(WHOLE), Content_Encoding="gzip"), "compressed"),
        (refusal(400), "HTTP status 400"),
        (refusal(401), "HTTP status 401"),
        (refusal(404, "no model\n\x1b[31m'big'"), "HTTP status 404"),
        (broken(b"", status=204), "HTTP status 204"),
    ],
)
def test_an_answer_that_is_none_is_an_error_at_once(
    answer: Any, words: str, pauses: list[float]
) -> None:
    with serving(answer) as server, pytest.raises(EndpointError, match=words) as failed:
        ask(opened(server, pauses))
    assert len(server.bodies) == 1
    assert pauses == []
    assert failed.value.where == server.name
    assert failed.value.code == "endpoint"


def test_a_charset_does_not_make_another_type() -> None:
    with serving(broken(WHOLE, kind="Application/JSON; charset=utf-8")) as server:
        assert texts(ask(opened(server))) == ["4"]


def test_megabytes_end_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ENDPOINT_REPLY_BYTES", 1_000_000)
    sent = []

    def endless(handler: Handler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.end_headers()
        with suppress(OSError):
            while len(sent) < 1000:
                handler.wfile.write(b" " * 100_000)
                sent.append(1)

    with serving(endless) as server, pytest.raises(EndpointError, match="over 1,000,000 bytes"):
        ask(opened(server))
    assert len(sent) < 1000


def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
    with serving(completion("stolen")) as other:
        there = f"{other.url}/v1/chat/completions"
        for status in (301, 302, 303, 307, 308):
            moved = refusal(status, Location=there)
            with (
                serving(moved) as server,
                pytest.raises(EndpointError, match="redirects") as failed,
            ):
                ask(opened(server))
            assert failed.value.status == status
        assert other.bodies == []


# --- what is tried again ----------------------------------------------------------------------


def test_a_busy_server_is_asked_again_more_and_more_rarely(pauses: list[float]) -> None:
    busy = [refusal(status) for status in (429, 500, 502, 503)]
    with serving(*busy, completion("4", usage=USAGE)) as server:
        batch = ask(opened(server, pauses))
    assert texts(batch) == ["4"]
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert batch.cost.decode_tokens == 6  # what refuses has computed nothing


def test_a_busy_server_says_how_long(pauses: list[float]) -> None:
    answers = [refusal(429, Retry_After=wait) for wait in ("7", "0", "99999", "soon")]
    with serving(*answers, completion("4")) as server:
        ask(opened(server, pauses))
    assert pauses == [7.0, 0.0, limits.MAX_ENDPOINT_PAUSE_SECONDS, 8.0]


def test_a_server_that_stays_busy_is_left(pauses: list[float]) -> None:
    with serving(refusal(503, "loading")) as server:
        with pytest.raises(EndpointError, match="loading") as failed:
            ask(opened(server, pauses, tries=3))
        assert len(server.bodies) == 3
    assert pauses == [1.0, 2.0]
    assert failed.value.status == 503


def cut_short(handler: Handler, body: dict[str, Any]) -> None:
    send(handler, WHOLE[:-5], length=len(WHOLE))


def hung_up(handler: Handler, body: dict[str, Any]) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("broke", [cut_short, hung_up])
def test_a_connection_that_breaks_is_tried_again_and_its_tokens_are_unknown(
    broke: Any, pauses: list[float]
) -> None:
    with serving(broke, completion("4", usage=USAGE)) as server:
        batch = ask(opened(server, pauses))
    assert texts(batch) == ["4"]
    assert pauses == [1.0]
    assert (batch.cost.prefill_tokens, batch.cost.decode_tokens) == (None, None)
    with serving(broke) as server, pytest.raises(EndpointError, match="connection broke") as failed:
        ask(opened(server, tries=2))
    assert failed.value.status is None


def test_a_server_that_is_not_there(pauses: list[float]) -> None:
    with serving(completion("4")) as server:
        pass
    with pytest.raises(EndpointError, match="no connection") as failed:
        ask(opened(server, pauses, tries=2))
    assert (failed.value.status, pauses) == (None, [1.0])


def test_where_nothing_was_asked_nothing_was_computed(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    real, calls = httpx.Client.stream, []

    def stream(self: httpx.Client, *words: Any, **options: Any) -> Any:
        calls.append(words)
        if len(calls) == 1:
            raise httpx.ConnectError("refused")
        return real(self, *words, **options)

    monkeypatch.setattr(httpx.Client, "stream", stream)
    with serving(completion("4", usage=USAGE)) as server:
        cost = ask(opened(server, pauses)).cost
    assert (cost.prefill_tokens, cost.decode_tokens, pauses) == (20, 6, [1.0])


# --- what takes too long ----------------------------------------------------------------------


def hangs(handler: Handler, body: dict[str, Any]) -> None:
    handler.state.over.wait()


def hangs_in_the_head(handler: Handler, body: dict[str, Any]) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: appl")
    handler.wfile.flush()
    hangs(handler, body)


def hangs_in_the_body(handler: Handler, body: dict[str, Any]) -> None:
    send(handler, WHOLE[:5], length=len(WHOLE))
    handler.wfile.flush()
    hangs(handler, body)


def drips(handler: Handler, body: dict[str, Any]) -> None:
    send(handler, b"", length=10**6)
    with suppress(OSError):
        while not handler.state.over.wait(SOON / 10):
            handler.wfile.write(b" ")
            handler.wfile.flush()


SLOW = [hangs, hangs_in_the_head, hangs_in_the_body, drips]


@pytest.mark.parametrize("slow", SLOW)
def test_a_server_that_hangs_is_left_and_not_asked_again(slow: Any, pauses: list[float]) -> None:
    with serving(slow) as server:
        with pytest.raises(EndpointError, match=r"within 0\.3 s"):
            ask(opened(server, pauses, seconds=SOON))
        assert len(server.bodies) == 1
    assert pauses == []


@pytest.mark.parametrize("slow", SLOW)
def test_a_budget_ends_the_waiting_and_is_no_error(slow: Any) -> None:
    allowance = Allowance(Budget(seconds=SOON))
    with serving(slow) as server:
        batch = ask(opened(server), 2, allowance=allowance)
    assert (batch.attempts, batch.cost.attempts) == ((), 0)
    assert batch.cost.decode_tokens is None  # it may have computed something
    assert allowance.ran_out == "seconds"


def test_a_budget_ends_the_pauses_too(pauses: list[float]) -> None:
    allowance = Allowance(Budget(seconds=5))
    with serving(refusal(429, Retry_After="50"), completion("4")) as server:
        ask(opened(server, pauses), allowance=allowance)
    assert len(pauses) == 1
    assert pauses[0] <= 5


def test_a_budget_in_tokens_bounds_what_is_asked_for() -> None:
    allowance = Allowance(Budget(tokens=140))
    answer = completion("a", usage={"prompt_tokens": 30, "completion_tokens": 10})
    with serving(answer) as server:
        batch = ask(opened(server), 4, allowance=allowance)
    # What is left is shared by those that are asked for; now the prompt's tokens are known, too.
    asked = [(body["n"], body["max_tokens"]) for body in server.bodies]
    assert asked == [(4, 35), (3, (140 - 40 - 30) // 3), (2, (140 - 80 - 30) // 2)]
    assert len(batch.attempts) == 3  # a fourth had no room behind its prompt
    assert allowance.ran_out == "tokens"


def test_what_the_budget_cut_off_was_given_up() -> None:
    allowance = Allowance(Budget(tokens=40))
    document = {"choices": [choice("a", "length")], "usage": USAGE}
    with serving(reply(document)) as server:
        batch = ask(opened(server), allowance=allowance)
        assert batch.attempts == (Attempt("a", False, 6, given_up=True),)
        batch = ask(opened(server), tokens=30, allowance=Allowance(Budget(tokens=40)))
        assert batch.attempts == (Attempt("a", False, 6),)


def test_without_a_count_a_budget_in_tokens_ends() -> None:
    allowance = Allowance(Budget(tokens=100))
    with serving(completion("a")) as server:
        batch = ask(opened(server), 3, allowance=allowance)
    assert texts(batch) == ["a"]
    assert allowance.ran_out == "tokens (not all were counted)"
