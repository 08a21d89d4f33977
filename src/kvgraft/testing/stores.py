"""What every `BlobStore` must do, as a suite that any store passes.

A store is tested by a subclass with a fixture:

    class TestMine(BlobStoreConformance):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "store")

`make_store()` gives an empty store the first time. A store that outlives its object takes
`DurableBlobStoreConformance`, where each further `make_store()` opens the same blobs again.
Stores that keep files should keep them under `tmp_path / "store"`: the suite guards its
surroundings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kvgraft.errors import BlobNotFound, KvgraftError, NameRefused, StoreError, Truncated
from kvgraft.limits import MAX_BLOB_NAME_CHARS
from kvgraft.store.base import BlobReader, BlobStore, BlobWriter

MakeStore = Callable[[], BlobStore]

BAD_NAMES = (
    "",
    ".",
    "..",
    "../outside",
    "../../outside",
    "a/../../outside",
    "a..b",
    "/outside",
    "a/b",
    "a\\b",
    "a\0b",
    "\0",
    "a\n",
    "a b",
    "Upper",
    "ä",
    "٣",
    "-a",
    "_a",
    ".hidden",
    "a" * (MAX_BLOB_NAME_CHARS + 1),
)
GOOD_NAMES = (
    "a",
    "0",
    "a.b",
    "a-b_c.d",
    "0123abcd" * 8 + ".pack",
    "a" * MAX_BLOB_NAME_CHARS,
)
NAME = "0123456789abcdef.blob"
MANY_BUFFERS = 3000  # more than one vectored read takes anywhere


def write(store: BlobStore, name: str, *pieces: bytes) -> None:
    """Publish a blob."""
    writer = store.writer()
    for piece in pieces:
        writer.write(piece)
    writer.publish(name)


def read(store: BlobStore, name: str) -> bytes:
    """A whole blob."""
    reader = store.open(name)
    try:
        data = bytearray(reader.size_bytes)
        reader.read_into(0, [memoryview(data)])
        return bytes(data)
    finally:
        reader.close()


@pytest.mark.conformance
class BlobStoreConformance:
    """The cases. Subclass it and give `make_store`."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """A factory of stores."""
        raise NotImplementedError("a subclass gives the fixture make_store")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[BlobStore]:
        """The store under test."""
        store = make_store()
        yield store
        store.close()

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Iterator[list[Path]]:
        """Files around the store, which must come out as they went in."""
        files = [tmp_path / "outside", tmp_path.parent / "outside"]
        for file in files:
            file.write_bytes(b"not the store's")
        yield files
        for file in files:
            assert file.read_bytes() == b"not the store's"
            file.unlink()

    # --- the protocol ---------------------------------------------------------------------

    def test_it_is_a_blob_store(self, store: BlobStore) -> None:
        assert isinstance(store, BlobStore)
        writer = store.writer()
        assert isinstance(writer, BlobWriter)
        writer.publish(NAME)
        reader = store.open(NAME)
        assert isinstance(reader, BlobReader)
        reader.close()

    def test_closing_twice_is_harmless(self, make_store: MakeStore) -> None:
        store = make_store()
        store.close()
        store.close()

    # --- round trips ----------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 3_000_001])
    def test_what_was_written_is_read(self, store: BlobStore, size: int) -> None:
        data = _pattern(size)
        write(store, NAME, data[: size // 3], data[size // 3 :])
        assert read(store, NAME) == data

    def test_writers_take_views_and_keep_no_reference(self, store: BlobStore) -> None:
        buffer = bytearray(b"before")
        writer = store.writer()
        writer.write(memoryview(buffer))
        buffer[:] = b"after!"
        writer.publish(NAME)
        assert read(store, NAME) == b"before"

    @pytest.mark.parametrize("name", GOOD_NAMES)
    def test_good_names(self, store: BlobStore, name: str) -> None:
        write(store, name, b"data")
        assert read(store, name) == b"data"
        assert list(store.names()) == [name]
        assert store.delete(name)

    def test_names_and_deletion(self, store: BlobStore) -> None:
        assert list(store.names()) == []
        for name in GOOD_NAMES:
            write(store, name, name.encode())
        assert sorted(store.names()) == sorted(GOOD_NAMES)
        assert store.delete("a") is True
        assert store.delete("a") is False
        with pytest.raises(BlobNotFound):
            store.open("a")
        assert sorted(store.names()) == sorted(set(GOOD_NAMES) - {"a"})
        assert read(store, "0") == b"0"

    def test_names_are_deleted_while_they_are_listed(self, store: BlobStore) -> None:
        for name in GOOD_NAMES:
            write(store, name, b"data")
        for name in store.names():
            assert store.delete(name)
        assert list(store.names()) == []

    def test_a_blob_that_is_not_there(self, store: BlobStore) -> None:
        with pytest.raises(BlobNotFound):
            store.open(NAME)
        assert store.delete(NAME) is False

    # --- reading --------------------------------------------------------------------------

    def test_reading_fills_buffers_one_after_the_other(self, store: BlobStore) -> None:
        data = _pattern(10_000)
        write(store, NAME, data)
        buffers = [bytearray(size) for size in (1, 0, 4096, 17, 3000)]
        reader = store.open(NAME)
        reader.read_into(123, [memoryview(buffer) for buffer in buffers])
        reader.read_into(10_000, [])
        reader.close()
        assert b"".join(buffers) == data[123 : 123 + sum(map(len, buffers))]

    def test_many_buffers_in_one_read(self, store: BlobStore) -> None:
        data = _pattern(5 * MANY_BUFFERS)
        write(store, NAME, data)
        target = memoryview(bytearray(len(data)))
        reader = store.open(NAME)
        reader.read_into(0, [target[n : n + 5] for n in range(0, len(target), 5)])
        reader.close()
        assert target == data

    @pytest.mark.parametrize(
        ("offset", "sizes"),
        [
            (0, [101]),
            (100, [1]),
            (99, [2]),
            (50, [25, 26]),
            (1_000, [1]),
            (2**62, [1]),
            (-1, [1]),
            (-3, [2]),
            (0, [100, 1]),
        ],
    )
    def test_reading_past_the_end(
        self, store: BlobStore, offset: int, sizes: Sequence[int]
    ) -> None:
        write(store, NAME, _pattern(100))
        reader = store.open(NAME)
        assert reader.size_bytes == 100
        with pytest.raises(Truncated):
            reader.read_into(offset, [memoryview(bytearray(size)) for size in sizes])
        reader.close()

    def test_many_buffers_past_the_end(self, store: BlobStore) -> None:
        write(store, NAME, _pattern(MANY_BUFFERS - 1))
        target = memoryview(bytearray(MANY_BUFFERS))
        reader = store.open(NAME)
        with pytest.raises(Truncated):
            reader.read_into(0, [target[n : n + 1] for n in range(MANY_BUFFERS)])
        reader.close()

    def test_a_reader_serves_threads(self, store: BlobStore) -> None:
        data = _pattern(64 * 1024)
        write(store, NAME, data)
        reader = store.open(NAME)

        def check(number: int) -> None:
            for offset in range(number, len(data) - 1000, 977):
                piece = bytearray(1000)
                reader.read_into(offset, [memoryview(piece)])
                assert piece == data[offset : offset + 1000]

        _in_threads(check, 4)
        reader.close()

    def test_a_reader_closes_twice(self, store: BlobStore) -> None:
        write(store, NAME, b"data")
        reader = store.open(NAME)
        reader.close()
        reader.close()
        assert read(store, NAME) == b"data"

    # --- whole or nothing -----------------------------------------------------------------

    def test_nothing_is_visible_before_publish(self, store: BlobStore) -> None:
        writer = store.writer()
        writer.write(b"half")
        assert list(store.names()) == []
        with pytest.raises(BlobNotFound):
            store.open(NAME)
        writer.write(b" and half")
        writer.publish(NAME)
        assert read(store, NAME) == b"half and half"

    def test_abort_leaves_nothing(self, store: BlobStore) -> None:
        writer = store.writer()
        writer.write(b"data")
        writer.abort()
        writer.abort()
        assert list(store.names()) == []
        store.writer().abort()

    def test_abort_after_publish_is_harmless(self, store: BlobStore) -> None:
        writer = store.writer()
        writer.write(b"data")
        writer.publish(NAME)
        writer.abort()
        assert read(store, NAME) == b"data"

    @pytest.mark.parametrize("end", ["publish", "abort"])
    def test_a_finished_writer_refuses(self, store: BlobStore, end: str) -> None:
        writer = store.writer()
        writer.write(b"data")
        writer.publish("first") if end == "publish" else writer.abort()
        before = list(store.names())
        with pytest.raises(StoreError):
            writer.write(b"more")
        with pytest.raises(StoreError):
            writer.publish("second")
        assert list(store.names()) == before

    def test_a_name_is_published_twice(self, store: BlobStore) -> None:
        first, second = store.writer(), store.writer()
        for writer in (first, second):
            writer.write(b"equal bytes")
        first.publish(NAME)
        reader = store.open(NAME)
        second.publish(NAME)
        assert list(store.names()) == [NAME]
        assert read(store, NAME) == b"equal bytes"
        piece = bytearray(5)
        reader.read_into(0, [memoryview(piece)])  # an open reader keeps its blob
        assert piece == b"equal"
        reader.close()

    def test_concurrent_writers(self, store: BlobStore) -> None:
        shared = _pattern(50_000)

        def publish(number: int) -> None:
            for turn in range(5):
                write(store, f"own-{number}-{turn}", b"%d" % number, shared)
                write(store, "shared.blob", shared[:20_000], shared[20_000:])

        _in_threads(publish, 8)
        own = {f"own-{number}-{turn}" for number in range(8) for turn in range(5)}
        assert set(store.names()) == own | {"shared.blob"}
        assert read(store, "shared.blob") == shared
        for name in own:
            assert read(store, name) == name.split("-")[1].encode() + shared

    # --- names that are none --------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:20]))
    def test_bad_names_are_refused(self, store: BlobStore, outside: list[Path], name: str) -> None:
        write(store, NAME, b"data")
        self._refused(store, name)
        assert list(store.names()) == [NAME]

    def test_paths_of_files_outside_are_refused(
        self, store: BlobStore, outside: list[Path]
    ) -> None:
        for file in outside:
            self._refused(store, str(file))

    def _refused(self, store: BlobStore, name: str) -> None:
        with pytest.raises(NameRefused):
            store.open(name)
        with pytest.raises(NameRefused):
            store.delete(name)
        writer = store.writer()
        writer.write(b"data")
        with pytest.raises(NameRefused) as caught:
            writer.publish(name)
        assert len(str(caught.value)) < 10 * MAX_BLOB_NAME_CHARS
        writer.abort()


class DurableBlobStoreConformance(BlobStoreConformance):
    """More cases, for stores that keep their blobs when they are closed."""

    def test_another_handle_sees_what_was_published(self, make_store: MakeStore) -> None:
        first, second = make_store(), make_store()
        write(first, NAME, b"data")
        assert read(second, NAME) == b"data"
        assert list(second.names()) == [NAME]
        assert second.delete(NAME)
        assert list(first.names()) == []
        first.close()
        second.close()

    def test_blobs_outlive_the_store(self, make_store: MakeStore) -> None:
        store = make_store()
        write(store, NAME, b"data")
        unfinished = store.writer()
        unfinished.write(b"never published")
        store.close()
        store = make_store()
        assert list(store.names()) == [NAME]
        assert read(store, NAME) == b"data"
        unfinished.abort()
        store.close()


def _pattern(size: int) -> bytes:
    """Bytes without a short period, so that a shifted read shows."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))[:size]


def _in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work(number)` in `count` threads at once; what goes wrong in one goes wrong here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def target(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except (KvgraftError, OSError, AssertionError) as error:
            errors.append(error)

    threads = [threading.Thread(target=target, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
