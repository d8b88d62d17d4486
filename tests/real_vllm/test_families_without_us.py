"""What upstream's class does alone with families other than Llama; with us: test_families.py.

Its class starts by itself on vLLM 0.12.0 to 0.16.0 only.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from conftest import HERE
from specvllm_compat.shim import installed

pytestmark = [
    pytest.mark.own_engine,
    pytest.mark.families,
    pytest.mark.skipif(
        not (0, 12) <= installed("vllm").number < (0, 17)
        or importlib.metadata.version("speculators") < "0.4",
        reason="upstream's class does not start by itself",
    ),
]
NAMES = ("qwen2", "gemma2", "granite", "stablelm", "gpt_neox", "gemma3")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Per family the largest error or the failure, without us."""
    folder = tmp_path_factory.mktemp("upstream")
    report = folder / "report.json"
    finished = subprocess.run(
        [sys.executable, str(HERE / "upstream_families.py"), str(folder), str(report), *NAMES],
        env=os.environ | {"SPECVLLM_COMPAT": "off", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), finished.stderr[-4000:]
    seen: dict[str, Any] = json.loads(report.read_text())
    return seen
