"""Models whose own forward passes on more than positions, states and residual."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from oracle import TOLERANCE
from specvllm_compat.shim import installed


@pytest.mark.own_engine
@pytest.mark.skipif(
    installed("vllm").number < (0, 12) or importlib.metadata.version("speculators") < "0.4",
    reason="llama_4_scaling came with vLLM 0.12.0, a forward that runs there with speculators 0.4",
)
def test_llama_4_scaling_reaches_every_layer_and_is_lost_with_the_consumers_forward(
    run_script: Any, tmp_path: Path
) -> None:
    seen = run_script("own_llama_4_scaling.py", tmp_path / "deepseek", VLLM_MLA_DISABLE="1")
    assert seen["prompts"] == 9
    assert seen["largest_error"] <= TOLERANCE
    assert min(seen["errors_without_us"]) > 100 * TOLERANCE
    assert "WRONG" not in seen["verified"].values(), seen["verified"]
    assert seen["verified_without_us"]["Hugging Face"] == "WRONG", seen["verified_without_us"]
