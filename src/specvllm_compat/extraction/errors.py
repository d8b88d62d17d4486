"""What a run ends with when it cannot do all of its work."""

from __future__ import annotations


class BadInput(ValueError):
    """Something asked for is impossible; found before the model is loaded. The text says why."""


class Incomplete(RuntimeError):
    """The run stopped early. What is there is whole; the same call goes on from it."""
