"""The proof of the patches: a patched speculators, without us, on a real engine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import patched_trees
import pytest
import torch
from conftest import HERE

REFUSED = ["ValueError"] * 4 + ["TypeError"] * 2


def states(folder: Path, model: Path, path: str) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What `own_states.py` reports and keeps, with these folders on the path and no others."""
    folder.mkdir()
    kept, report = folder / "states.pt", folder / "report.json"
    finished = subprocess.run(
        [sys.executable, str(HERE / "own_states.py"), *map(str, (model, kept, report))],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-6000:]
    return json.loads(report.read_text()), torch.load(kept)


@pytest.mark.own_engine
@pytest.mark.patched
def test_patched_speculators_without_us_gives_the_states_of_a_shimmed_one_bit_for_bit(
    llama: Path, tmp_path: Path
) -> None:
    tree = patched_trees.patched(tmp_path, importlib.metadata.version("speculators"))
    seen, theirs = states(tmp_path / "patched", llama, str(tree))
    assert not seen["with_us"]
    assert seen["prompts"] == 67
    assert seen["refused"] == REFUSED
    seen, ours = states(tmp_path / "shimmed", llama, os.environ["PYTHONPATH"])
    assert seen["with_us"]
    assert seen["refused"] == REFUSED
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        assert torch.equal(one, other)
