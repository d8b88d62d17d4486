"""Carry states from a worker to the driver through memory that both have mapped.

A worker writes each step's states once, the driver reads them without a copy; only row labels
cross the RPC. The file behind the mapping is unlinked as soon as both sides have mapped it, so no
crash of either leaves anything behind.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Segment:
    """A mapped file for ``states [layers, rows, hidden]``; small, so it can cross the RPC."""

    path: str
    layers: int
    rows: int
    hidden: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        return self.layers * self.rows * self.hidden

    def map(self) -> torch.Tensor:
        """The states, [layers, rows, hidden] in ``dtype``: the same memory in both processes.

        Raises:
            FileNotFoundError: the file is not on this host, or was unlinked.
        """
        if not os.path.exists(self.path):  # from_file would create it
            raise FileNotFoundError(self.path)
        flat = torch.from_file(self.path, shared=True, size=self.elements, dtype=self.dtype)
        return flat.view(self.layers, self.rows, self.hidden)

    def unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def create(layers: int, rows: int, hidden: int, dtype: torch.dtype) -> Segment:
    """A segment in shared memory, or in the temporary folder where shared memory is too small.

    Its pages are reserved now: a full ``/dev/shm`` kills whoever touches a page it can't give.

    Raises:
        OSError: neither place has room; the text says how much is needed.
    """
    size = layers * rows * hidden * dtype.itemsize
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    for place in places:
        path = place / f"specvllm-{os.getpid()}-{uuid.uuid4().hex}"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError:
            continue
        try:
            os.posix_fallocate(descriptor, 0, size)
            return Segment(str(path), layers, rows, hidden, dtype)
        except OSError:
            path.unlink()
        finally:
            os.close(descriptor)
    raise OSError(
        f"{size / 2**20:.0f} MiB are needed to hand states over ({layers} layers x {rows} tokens x "
        f"{hidden} values), and neither {places[0]} nor {places[1]} has them. Enlarge one of them, "
        "or lower max_num_batched_tokens."
    )
