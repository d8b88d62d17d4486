"""Which samples are done, with a checksum each: a journal per rank, merged at the end.

A line is appended after its file is in place. A file that is damaged, or that no journal knows, is
done again. The merged manifest is in the order of the samples, so that it does not tell how many
processes there were, or how often they were killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.files import (
    remove_temporary_files,
    replacing,
    size_and_sum,
    sync_folder,
)
from specvllm_compat.extraction.formats import Format
from specvllm_compat.extraction.rows import Rows, identity

log = logging.getLogger("specvllm_compat")

MANIFEST = "manifest.jsonl"
_NO_FILE = -1
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_AT_ONCE = 1024
_READERS = 4


@dataclass(frozen=True)
class Entry:
    """One line: a sample, its content hash, and the size and checksum of its file.

    Without a size the engine could not compute the sample, and there is no file.
    """

    index: int
    sample: str
    size: int | None
    sum: bytes

    def line(self) -> str:
        """The entry as JSON."""
        about = {"i": self.index, "sample": self.sample, "bytes": self.size}
        return json.dumps({**about, "sha256": self.sum.hex()}) + "\n"


class Manifest:
    """``done``, ``sizes`` and ``sums`` by sample: 41 bytes each, whatever the size of its states.

    ``owner`` names the journal. Only one process may hold it.
    """

    def __init__(self, folder: Path, rows: Rows, format: Format, owner: str) -> None:
        self._folder, self._rows, self._format, self._owner = folder, rows, format, owner
        self.done = np.zeros(len(rows), dtype=bool)
        self.sizes = np.zeros(len(rows), dtype=np.int64)
        self.sums = np.zeros((len(rows), 32), dtype=np.uint8)
        self.damaged = 0
        self._lock = threading.Lock()
        self._read: dict[tuple[str, int], int] = {}  # name and inode -> how far
        path = folder / f"journal-{owner}.jsonl"
        self._journal = open(path, "ab")  # noqa: SIM115  # closed by __exit__
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"another process writes to {path}: give each of them a --rank of its own"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.warning("%s is on a disk without locks: see to it that ranks differ", folder)
        _end_last_line(path, self._journal.fileno())

    def __enter__(self) -> Manifest:
        return self

    def __exit__(self, *error: object) -> None:
        self._journal.close()

    def load(self, verify: bool) -> None:
        """Take over what is whole. Sizes of files are compared; to ``verify``, checksums too."""
        for entry, good in self._looked_at(self._entries(), verify):
            if good:
                self._take(entry)
        present = self._format.indices(self._folder)
        self.damaged = sum(
            1 for index in present if index < len(self.done) and not self.done[index]
        )

    def add(self, index: int, size: int | None, sum: bytes = b"") -> None:
        """The sample's file is in place; without a size, there will be none."""
        entry = Entry(index, identity(self._rows[index]), size, sum)
        with self._lock:
            self._journal.write(entry.line().encode())
            self._journal.flush()
            self._take(entry)

    def refresh(self) -> int:
        """Take over what other ranks have done meanwhile; how many files are no longer there.

        A sample whose file was removed or changed since is not done.
        """
        for entry in self._entries():
            self._take(entry)
        done = (self._entry(index) for index in np.flatnonzero(self.done).tolist())
        gone = [entry.index for entry, good in self._looked_at(done) if not good]
        self.done[gone] = False
        return len(gone)

    def merge(self) -> None:
        """Put one manifest in the place of the journals, if every sample is done."""
        with replacing(self._folder / MANIFEST, self._owner) as sink:
            for index in range(len(self.done)):
                sink.write(self._entry(index).line().encode())
        for path in self._folder.glob("journal-*.jsonl"):
            path.unlink(missing_ok=True)
        for folder in {self._folder, self._format.path(self._folder, 0).parent}:
            remove_temporary_files(folder)
            sync_folder(folder)

    def _looked_at(
        self, entries: Iterator[Entry], verify: bool = False
    ) -> Iterator[tuple[Entry, bool]]:
        """The entries, with whether their files are as they say."""

        def whole(entry: Entry) -> bool:
            path = self._format.path(self._folder, entry.index)
            if entry.size is None:
                return not path.exists()
            try:
                if path.stat().st_size != entry.size:
                    return False
                return not verify or size_and_sum(path) == (entry.size, entry.sum)
            except FileNotFoundError:
                return False

        with ThreadPoolExecutor(_READERS) as pool:
            while some := list(islice(entries, _AT_ONCE)):
                yield from zip(some, pool.map(whole, some), strict=True)

    def _entry(self, index: int) -> Entry:
        """What was taken over."""
        sample, size = identity(self._rows[index]), int(self.sizes[index])
        if size == _NO_FILE:
            return Entry(index, sample, None, b"")
        return Entry(index, sample, size, self.sums[index].tobytes())

    def _take(self, entry: Entry) -> None:
        self.done[entry.index] = True
        self.sizes[entry.index] = _NO_FILE if entry.size is None else entry.size
        if entry.size is not None:
            self.sums[entry.index] = np.frombuffer(entry.sum, dtype=np.uint8)

    @property
    def failed(self) -> int:
        """Samples that the engine could not compute."""
        return int((self.sizes == _NO_FILE).sum())

    def _entries(self) -> Iterator[Entry]:
        """New entries about samples of this job. A merge of another rank's may be under way."""
        journals = sorted(self._folder.glob("journal-*.jsonl"))
        for path in [self._folder / MANIFEST, *journals, self._folder / MANIFEST]:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                key = (path.name, os.fstat(file.fileno()).st_ino)
                file.seek(self._read.get(key, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # another rank is writing it
                    self._read[key] = self._read.get(key, 0) + len(line)
                    entry = read_entry(line)
                    if (
                        entry is not None
                        and 0 <= entry.index < len(self._rows)
                        and entry.sample == identity(self._rows[entry.index])
                    ):
                        yield entry


def read_entry(line: bytes) -> Entry | None:
    """The entry, or None for a line that a crash cut short."""
    try:
        about = json.loads(line)
        return Entry(about["i"], about["sample"], about["bytes"], bytes.fromhex(about["sha256"]))
    except (ValueError, KeyError, TypeError):
        return None


def _end_last_line(path: Path, descriptor: int) -> None:
    """So that the next line does not go on with one that a crash cut short."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                os.write(descriptor, b"\n")
