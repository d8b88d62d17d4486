"""Fake trees, written once per test run and combination."""

from __future__ import annotations

from collections.abc import Callable

import fake_trees
import pytest


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., fake_trees.Tree]:
    """``tree(vllm="0.16.0", speculators="0.3.0", transformers="5.0.0")``, each with a default."""
    written: dict[tuple[tuple[str, str], ...], fake_trees.Tree] = {}

    def get(**releases: str) -> fake_trees.Tree:
        key = tuple(sorted(releases.items()))
        if key not in written:
            written[key] = fake_trees.write(tmp_path_factory.mktemp("tree"), **releases)
        return written[key]

    return get
