"""Memory of results, used again when nobody holds a result any more.

Fresh memory costs several times as much as the copy into it: the system has to find and clear
every page.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any

import torch


class Memory:
    """Tensors whose memory comes back here when the last of their users is gone.

    At most ``keep`` bytes wait here, the oldest go back to the system. Any thread may let go of a
    tensor.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._kept = 0
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, list[Any]] = OrderedDict()  # by size; used last comes last

    def empty(self, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """[rows, width], not filled. Its storage is its own: saving it saves nothing else."""
        block = self._take(_rounded(rows * width * dtype.itemsize))
        lease = memoryview(block)  # one per tensor: the tensor's storage holds it
        weakref.finalize(lease, _return, weakref.ref(self), block).atexit = False
        return torch.frombuffer(lease, dtype=dtype, count=rows * width).view(rows, width)

    def _take(self, size: int) -> Any:
        with self._lock:
            if size not in self._blocks:
                return torch.empty(size, dtype=torch.uint8).numpy()
            return self._pop(size)

    def put(self, block: Any) -> None:
        """Keep a block. This can come in the middle of anything, `empty` too: it does not wait."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._blocks.setdefault(block.nbytes, []).append(block)
            self._blocks.move_to_end(block.nbytes)
            self._kept += block.nbytes
            while self._kept > self._keep:
                self._pop(next(iter(self._blocks)))
        finally:
            self._lock.release()

    def close(self) -> None:
        """Keep nothing any more. Tensors that are in use stay as they are."""
        with self._lock:
            self._keep = self._kept = 0
            self._blocks.clear()

    def _pop(self, size: int) -> Any:
        block = self._blocks[size].pop()
        if not self._blocks[size]:
            del self._blocks[size]
        self._kept -= size
        return block


def _return(memory: weakref.ref[Memory], block: Any) -> None:
    here = memory()
    if here is not None:
        here.put(block)


def _rounded(size: int) -> int:
    """Up to four significant bits: a prompt of nearly the same length finds it."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
