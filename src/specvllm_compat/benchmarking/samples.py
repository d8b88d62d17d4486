"""Repeated measurements of rivals that took turns, and what may be said of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The median of some samples, the smallest and the largest."""

    median: float
    low: float
    high: float

    def text(self, format: str = ".2f") -> str:
        """``median [low, high]``."""
        return f"{self.median:{format}} [{self.low:{format}}, {self.high:{format}}]"


def spread(samples: Sequence[float]) -> Spread:
    """What was seen, in three numbers."""
    return Spread(statistics.median(samples), min(samples), max(samples))


def rates(amount: float, seconds: Sequence[float]) -> list[float]:
    """``amount`` per second, run by run."""
    return [amount / each for each in seconds]


def ratio(rates: Sequence[float], of: Sequence[float]) -> Spread:
    """How many times as fast, round by round: a slow moment of the machine hits both."""
    return spread([ours / theirs for ours, theirs in zip(rates, of, strict=True)])
