"""What upstream's class does alone with families other than Llama; with us: test_families.py.

It starts by itself on vLLM 0.12.0 to 0.16.0 only.
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
from oracle import TOLERANCE
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


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Per family the errors or the failure, without us."""
    folder = tmp_path_factory.mktemp("upstream")
    report = folder / "report.json"
    finished = subprocess.run(
        [sys.executable, str(HERE / "upstream_families.py"), str(folder), str(report)],
        env=os.environ | {"SPECVLLM_COMPAT": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), finished.stderr[-4000:]
    seen: dict[str, Any] = json.loads(report.read_text())
    return seen


def test_upstream_is_right_where_nothing_is_special(alone: dict[str, Any]) -> None:
    assert alone["qwen2"]["largest error"] <= TOLERANCE


def test_embeddings_of_gemma_are_not_scaled_without_us(alone: dict[str, Any]) -> None:
    assert alone["gemma2"]["smallest error"] > 1000 * TOLERANCE


def test_a_residual_that_is_in_the_states_is_added_again_without_us(alone: dict[str, Any]) -> None:
    assert alone["exaone4"]["smallest error"] > 1000 * TOLERANCE


def test_layers_that_take_no_residual_fail_without_us(alone: dict[str, Any]) -> None:
    assert "unexpected keyword argument 'residual'" in alone["granite"]["failure"]


def test_layers_under_another_name_are_not_found_without_us(alone: dict[str, Any]) -> None:
    assert "Could not find base model" in alone["gpt_neox"]["failure"]
