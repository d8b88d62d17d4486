"""Facts about the environment that make a run fail before it starts."""

from __future__ import annotations

from specvllm_compat.shim import Release
from specvllm_compat.source import SourceLens


def environment_facts(lens: SourceLens, releases: dict[str, Release]) -> list[str]:
    """One sentence per fact worth acting on."""
    return []
