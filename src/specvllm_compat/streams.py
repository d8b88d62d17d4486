"""Keep a command's output to itself: vLLM and its workers write to stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send what this process and its children write to file descriptor 1 to 2."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
