"""`store`: stats, check, reindex."""

from __future__ import annotations

from kvgraft.cli import docs


def test_stats(run, solved) -> None:
    document = run("store", "stats", "--json").document
    assert set(document) == set(docs.DOCUMENTS["store stats"])
    assert document["packs"] > 0
    assert document["objects"] == sum(one["objects"] for one in document["roles"].values()) > 0
    human = run("store", "stats")
    assert human.status == 0
    assert f"{document['packs']}, " in human.stdout
    assert "toy" in human.stdout


def test_check_of_a_sound_store(run, solved) -> None:
    seen = run("store", "check", "--json")
    assert seen.status == 0
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["store check"])
    assert (document["ok"], document["problems"], document["alarms"]) == (True, [], [])
    human = run("store", "check")
    assert human.status == 0
    assert "problems      0" in human.stdout


def test_a_lost_index_is_made_anew(run, solved, replaying) -> None:
    for file in solved.glob("index.sqlite3*"):
        file.unlink()
    checked = run("store", "check")
    assert checked.status == 0  # it loses time, not truth
    assert "kvgraft store reindex" in checked.stdout
    assert run("store", "check", "--json").document["unlisted_objects"] > 0

    made = run("store", "reindex", "--json")
    assert made.status == 0
    assert set(made.document) == set(docs.DOCUMENTS["store reindex"])
    assert made.document["objects"] > 0
    assert run("store", "check", "--json").document["unlisted_objects"] == 0
    asked = ("ask", replaying["problem"], "--model", "toy:4", "--minimum", "replayed", "--json")
    assert run(*asked).document["cost"]["prefill_tokens"] == 0
    assert run("store", "reindex").status == 0


def test_reindex_leaves_out_what_is_damaged(run, solved) -> None:
    pack = next((solved / "blobs").rglob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[300] ^= 1
    pack.write_bytes(data)
    seen = run("store", "reindex", "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["ok"] is False
    human = run("store", "reindex")
    assert human.status == 1
    assert pack.name in human.stdout


def test_looking_makes_no_store(run, tmp_path) -> None:
    for word in ("stats", "check", "reindex"):
        assert run("store", word).status == 6
        assert run("store", word, "--store", tmp_path / "elsewhere").status == 6
    assert list(tmp_path.iterdir()) == []
