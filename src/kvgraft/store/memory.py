"""Blobs in this process's memory: for tests, and for a cache that need not outlive it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvgraft.errors import BlobNotFound, Truncated
from kvgraft.store.base import BlobReader, BlobWriter, checked_name, finished_writer


class MemoryStore:
    """A dictionary of byte strings."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def writer(self) -> BlobWriter:
        return _MemoryWriter(self._blobs)

    def open(self, name: str) -> BlobReader:
        try:
            return _MemoryReader(self._blobs[checked_name(name)], name)
        except KeyError:
            raise BlobNotFound("no such blob", where=name) from None

    def delete(self, name: str) -> bool:
        return self._blobs.pop(checked_name(name), None) is not None

    def names(self) -> Iterator[str]:
        return iter(tuple(self._blobs))

    def close(self) -> None:
        return


class _MemoryReader:
    def __init__(self, data: bytes, name: str) -> None:
        self._data = memoryview(data)
        self._name = name
        self.size_bytes = len(data)

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        if offset < 0:  # a slice would count it from the end
            raise Truncated("a blob has no bytes before its first", where=self._name)
        for buffer in buffers:
            piece = self._data[offset : offset + len(buffer)]
            if len(piece) != len(buffer):
                raise Truncated("the blob ends too soon", where=self._name)
            buffer[:] = piece
            offset += len(buffer)

    def close(self) -> None:
        return


class _MemoryWriter:
    def __init__(self, blobs: dict[str, bytes]) -> None:
        self._blobs = blobs
        self._data: bytearray | None = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self._open_data().extend(data)

    def publish(self, name: str) -> None:
        data, self._data = self._open_data(), None
        self._blobs[checked_name(name)] = bytes(data)

    def abort(self) -> None:
        self._data = None

    def _open_data(self) -> bytearray:
        if self._data is None:
            raise finished_writer()
        return self._data
