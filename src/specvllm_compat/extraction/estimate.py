"""What a run will take, before it starts: samples, tokens, bytes, and whether they fit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

_RESERVE = 1 << 28
_PER_FILE = 4096  # headers, and the rest of a block


@dataclass(frozen=True)
class Estimate:
    """Of all samples that are missing, whichever rank does them."""

    samples: int
    tokens: int
    bytes: int
    free: int

    @classmethod
    def of(cls, folder: Path, samples: int, tokens: int, per_token: int) -> Estimate:
        """Set the need against the free space of the folder's disk."""
        size = samples * _PER_FILE + tokens * per_token
        return cls(samples, tokens, size, shutil.disk_usage(folder).free)

    @property
    def fits(self) -> bool:
        """With a little to spare."""
        return not self.samples or self.bytes + _RESERVE <= self.free

    def __str__(self) -> str:
        return (
            f"{self.samples:,} samples, {self.tokens:,} tokens, {self.bytes / 1e9:,.2f} GB to "
            f"write; {self.free / 1e9:,.2f} GB are free"
        )
