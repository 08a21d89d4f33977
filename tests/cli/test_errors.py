"""Bad input: each a status, a stable code, what and where, and what to do about it."""

from __future__ import annotations

import errno
import json
import re
import resource
from pathlib import Path

import pytest

from kvgraft.cli import docs
from kvgraft.errors import DigestMismatch

ASK = ("ask", "What is 1 + 1?", "--model")
SOLVE = ("solve", "FILE", "--model", "toy", "--verifier")

# What is run (FILE: the case's file), what the file holds, the status, the code, words of the
# message, words of the hint.
CASES = {
    "no command of that name": (("slove",), None, 2, "usage", "solve", "--help"),
    "no option of that name": (("doctor", "--fast"), None, 2, "usage", "--fast", "doctor --help"),
    "no model": (("ask", "x"), None, 2, "usage", "--model", "ask --help"),
    "no attempts": ((*SOLVE, "exact", "--attempts", "0"), None, 2, "usage", "attempts", "--help"),
    "cold": ((*SOLVE, "exact", "--temperature", "0"), '{"problem": "x", "answer": "1"}', 2, "usage",
             "temperature", ""),
    "no verifier of that name": ((*SOLVE, "maths"), '{"problem": "x"}', 2, "usage", "maths",
                                 "choose from math"),
    "bad pattern": ((*SOLVE, "regex:("), '{"problem": "x"}', 2, "usage", "does not compile", ""),
    "no such program": ((*SOLVE, "command:no-such"), '{"problem": "x"}', 2, "usage", "no-such", ""),
    "text and file": (("ask", "x", "--file", "FILE", "--model", "toy"), "x", 2, "usage", "either",
                      "--help"),
    "a key for nobody": ((*ASK, "toy", "--expected", "2"), None, 2, "usage", "verifier",
                         "--verifier"),
    "too few samples": (("prove", "toy", "--samples", "4"), None, 2, "usage", "5 samples", ""),
    "no problem file": (("solve", "absent.jsonl", "--model", "toy", "--verifier", "exact"), None, 3,
                        "bad_input", "No such file", ""),
    "empty problem file": ((*SOLVE, "exact"), "", 3, "bad_input", "no problems", "one object"),
    "line is no object": ((*SOLVE, "exact"), '{"problem": "x"}\n[1]', 3, "bad_input",
                          "not a JSON object", "problem"),
    "line is no JSON": ((*SOLVE, "exact"), '{"problem": "x"', 3, "bad_input", "not JSON", ""),
    "misspelt key": ((*SOLVE, "exact"), '{"problem": "x", "anwser": "1"}', 3, "bad_input", "anwser",
                     "answer"),
    "problem without its answer": ((*SOLVE, "math"), '{"problem": "x"}', 3, "bad_input",
                                   "needs an answer", "answer"),
    "file is not UTF-8": (("ask", "--file", "FILE", "--model", "toy"), b"\xff\xfe", 3, "bad_input",
                          "UTF-8", "convert"),
    "no file to ask": (("ask", "--file", "absent.txt", "--model", "toy"), None, 3, "bad_input",
                       "No such file", ""),
    "empty question": (("ask", "  ", "--model", "toy"), None, 3, "bad_input", "empty", ""),
    "unknown model": ((*ASK, "demo:smolm2"), None, 4, "unknown_model", "smolm2",
                      "did you mean demo:smollm2"),
    "no model there": ((*ASK, "no-such-model"), None, 4, "unknown_model", "no-such-model",
                       "demo:NAME"),
    "unknown model of a worker": (("prove", "no-such-model"), None, 4, "unknown_model", "", ""),
    "half a GGUF file": ((*ASK, "FILE"), b"GGUF" + bytes(2000), 4, "unreadable_model", "", ""),
    "not a GGUF file": ((*ASK, "FILE"), b"hello", 4, "unknown_model", "not a GGUF", "demo:NAME"),
    "unknown demo model": (("models", "pull", "demo:gemma"), None, 4, "unknown_model", "gemma",
                           "did you mean demo:gemma3"),
    "store is a file": ((*ASK, "toy", "--store", "FILE"), "", 6, "store", "not a folder",
                        "--store"),
    "store cannot be made": ((*ASK, "toy", "--store", "/proc/none"), None, 6, "store", "", ""),
    "no store": (("store", "check"), None, 6, "store", "no store", "KVGRAFT_STORE"),
    "no library": (("library", "ls"), None, 6, "store", "no library", "kvgraft solve"),
    "prompt over the context": (("ask", "x" * 3000, "--model", "toy"), None, 8, "context_too_long",
                                "2048", "shorten"),
    "line too long": ((*SOLVE, "exact"), "x" * 1_100_000, 8, "limit_exceeded", "1,048,576", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input(run, tmp_path: Path, name: str) -> None:
    words, content, status, code, what, hint = CASES[name]
    file = tmp_path / "given"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    words = [str(file) if word == "FILE" else word for word in words]

    seen = run(*words)
    assert (seen.status, seen.stdout) == (status, "")
    lines = seen.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert what in lines[0]
    assert lines[1].startswith("hint: ")  # every error says what to do
    assert hint in lines[1]
    assert "Traceback" not in seen.stderr

    again = run(*words, "--json")
    assert again.status == status
    error = again.document["error"]
    assert error.keys() == {"code", "what", "where", "hint"}
    assert error["code"] == code


def test_a_line_is_named(run, tmp_path: Path) -> None:
    file = tmp_path / "three.jsonl"
    file.write_text('{"problem": "a"}\n\n"b"\n')
    seen = run("solve", file, "--model", "toy", "--verifier", "command:true")
    assert f"[{file}:3]" in seen.stderr


def test_a_missing_engine_says_what_to_install(run, no_torch) -> None:
    seen = run(*ASK, "demo:smollm2", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (5, "missing_extra")
    assert "pip install 'kvgraft[transformers]'" in seen.stderr


def test_a_missing_verifier_says_what_to_install(run, problems, no_torch) -> None:
    seen = run("solve", problems, "--model", "toy", "--verifier", "math")
    assert seen.status == 5
    assert "pip install 'kvgraft[math]'" in seen.stderr


def test_an_unknown_deposit(run, solved) -> None:
    for words in (("show", "0123"), ("revoke", "0123", "--reason", "wrong")):
        seen = run("library", *words, "--json")
        assert (seen.status, seen.document["error"]["code"]) == (3, "record_not_found")


def test_an_artifact_that_a_command_cannot_do_without(run, solved, monkeypatch) -> None:
    _stats_raise(monkeypatch, DigestMismatch("not what was written", where="pack@0", hint="check"))
    seen = run("store", "stats", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (7, "artifact_digest")
    assert "error: not what was written [pack@0]\nhint: check\n" in seen.stderr


def test_something_unexpected(run, solved, monkeypatch) -> None:
    _stats_raise(monkeypatch, ZeroDivisionError("by nought"))
    seen = run("store", "stats", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (9, "internal")
    assert "ZeroDivisionError: by nought" in seen.stderr
    assert "--debug" in seen.stderr
    assert "Traceback" not in seen.stderr
    loud = run("--debug", "store", "stats")
    assert loud.status == 9
    assert "Traceback" in loud.stderr


def test_an_interrupt_anywhere(run, solved, monkeypatch) -> None:
    _stats_raise(monkeypatch, KeyboardInterrupt())
    seen = run("store", "stats", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (130, "interrupted")
    assert "hint: " in seen.stderr


def _stats_raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def stats(chunks: object) -> None:
        raise error

    monkeypatch.setattr("kvgraft.store.check.stats", stats)


def test_words_of_a_model_cannot_steer_a_terminal(run, solved, monkeypatch) -> None:
    _stats_raise(monkeypatch, ZeroDivisionError("\x1b[2J\x07 gone"))
    assert "\x1b" not in run("store", "stats").stderr


def test_a_read_only_folder(run, tmp_path: Path, monkeypatch) -> None:
    def mkdir(self: Path, *args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    seen = run(*ASK, "toy", "--store", tmp_path / "new", "--json")
    assert (seen.status, seen.document["error"]["code"]) == (6, "store_read_only")
    assert "owner and mode" in seen.stderr


def test_a_full_disk(spawn, problems: Path, tmp_path: Path, solving) -> None:
    """A limit on the size of files stands in for a disk with no room for the database."""

    def tiny_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    seen = spawn(*solving, "--json", preexec_fn=tiny_files)
    assert seen.status == 6, seen.stderr
    assert seen.document["error"]["code"].startswith("store")
    # With room again, the same command does the same work.
    assert spawn(*solving).status == 0
    assert spawn("store", "check").status == 0


def test_every_documented_status_is_produced_by_a_test() -> None:
    documented = set(map(int, re.findall(r"^\| (\d+) \|", docs.markdown(), re.MULTILINE)))
    here = {case[2] for case in CASES.values()} | {5, 7, 9, 130}
    elsewhere = {0, 1, 141}  # test_library, test_store, test_pipe
    assert documented == here | elsewhere


def test_an_error_is_one_document_whatever_else_is_printed(spawn) -> None:
    seen = spawn("ask", "x", "--model", "no-such-model", "--json")
    assert seen.status == 4
    assert json.loads(seen.stdout)["error"]["code"] == "unknown_model"


def test_options_after_two_dashes_are_text(run) -> None:
    seen = run("ask", "--model", "no-such-model", "--", "--json")
    assert (seen.status, seen.stdout) == (4, "")
