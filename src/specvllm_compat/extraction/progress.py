"""What is seen of a run while it goes on: one bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger("specvllm_compat")

_SECONDS = 30.0


class Progress:
    """Counts tokens, which time goes with, and tells samples, GB written and the queue's depth."""

    def __init__(self, samples: int, tokens: int, waiting: Callable[[], int]) -> None:
        self._samples, self._tokens, self._waiting = samples, tokens, waiting
        self._lock = threading.Lock()
        self._done = self._done_tokens = self._bytes = 0
        self._started = self._told = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=tokens, unit="tok", unit_scale=True, dynamic_ncols=True)

    def add(self, tokens: int, size: int) -> None:
        """A sample was written."""
        with self._lock:
            self._done += 1
            self._done_tokens += tokens
            self._bytes += size
            if self._bar is not None:
                self._bar.set_postfix_str(self._state(), refresh=False)
                self._bar.update(tokens)
            elif time.monotonic() - self._told > _SECONDS:
                self._tell()

    def close(self) -> None:
        """Leave the last state behind."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
            else:
                self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        rate = self._done_tokens / max(self._told - self._started, 1e-9)
        left = (self._tokens - self._done_tokens) / max(rate, 1e-9)
        share = 100 * self._done_tokens // max(self._tokens, 1)
        log.info("%d%%, %s, %d tokens/s, %s left", share, self._state(), rate, _clock(left))

    def _state(self) -> str:
        return (
            f"{self._done}/{self._samples} samples, {self._bytes / 1e9:.2f} GB, "
            f"queue {self._waiting()}"
        )


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
