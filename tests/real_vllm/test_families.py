"""Model families: who is read, and who is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from families import FAMILIES
from oracle import TOLERANCE
from specvllm_compat.engine.families import CaptureError, refuse_architecture
from vllm.model_executor.models import ModelRegistry

UNREADABLE = ("DeepseekV4ForCausalLM", "BeamForCausalLM", "InklingForCausalLM")


def test_a_family_that_nobody_can_read_is_refused_by_name_before_its_weights_are_loaded() -> None:
    for architecture in UNREADABLE:
        if architecture in ModelRegistry.models:
            with pytest.raises(CaptureError, match=architecture):
                refuse_architecture(SimpleNamespace(architectures=[architecture]))
    refuse_architecture(
        SimpleNamespace(architectures=["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
    )
    refuse_architecture(SimpleNamespace(architectures=["ModelOfAnotherPackage"]))


@pytest.mark.own_engine
@pytest.mark.families
@pytest.mark.parametrize("name", FAMILIES)
def test_the_states_of_a_family_are_those_of_hugging_face(
    run_script: Any, tmp_path: Path, name: str
) -> None:
    seen = run_script("own_family.py", name, tmp_path / "model", **FAMILIES[name].variables)
    assert seen["prompts"] == 10
    assert seen["largest_error"] <= TOLERANCE
