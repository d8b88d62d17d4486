"""Files that are whole or not there at all, after a power cut and on a network disk too."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_BLOCK = 1 << 20


class Sink:
    """Counts and hashes what is written to it, and hands it on, unless only the sum is asked for.

    Its one method is all that ``torch.save`` and pyarrow need.
    """

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Take all of the bytes."""
        self._digest.update(data)
        if self._file is not None:
            self._file.write(data)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def flush(self) -> None:
        """Nothing is held back here."""

    @property
    def sum(self) -> bytes:
        """SHA-256 of everything so far."""
        return self._digest.digest()


@contextlib.contextmanager
def replacing(path: Path, owner: str) -> Iterator[Sink]:
    """A sink that becomes the file ``path`` when the block ends, or nothing if it raises.

    ``owner`` keeps the temporary files of processes apart that share a folder. Their names end in
    ``.tmp``: trainers take every file for data whose name ends in ``pt``.
    """
    temporary = path.with_name(f".{path.name}.{owner}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield (sink := Sink(file))
            assert sink.size == file.tell()
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_whole(path: Path, data: str | bytes, owner: str) -> None:
    """Write a small file, unless it holds just this already."""
    data = data.encode() if isinstance(data, str) else data
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    with replacing(path, owner) as sink:
        sink.write(data)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_and_sum(path: Path) -> tuple[int, bytes]:
    """A file's size and SHA-256."""
    sink = Sink()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            sink.write(block)
    return sink.size, sink.sum


def remove_temporary_files(folder: Path, owner: str = "*") -> None:
    """Remove what an owner, or everybody, left behind when it was killed."""
    for path in folder.glob(f".*.{owner}.tmp"):
        path.unlink(missing_ok=True)
