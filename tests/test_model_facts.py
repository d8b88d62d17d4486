"""What a config.json tells about a model, before its weights are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specvllm_compat.contract import SourceLens
from specvllm_compat.preflight.model_facts import model_facts, read_config

REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "ExaoneForCausalLM": ("exaone4", "ExaoneForCausalLM"),
    "DeepseekV4ForCausalLM": (
        "vllm.models.deepseek_v4",
        "DeepseekV4ForCausalLM",
    ),
    "InklingForCausalLM": ("vllm.models.inkling", "InklingForCausalLM"),
    "MixedForCausalLM": ("mixed", "MixedForCausalLM"),
}
"""

Facts = Callable[..., tuple[dict[str, str], list[str]]]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    for folder in (models, models.parent, models.parent.parent):
        (folder / "__init__.py").touch()
    (models / "registry.py").write_text(REGISTRY)
    for name in ("llama", "exaone4"):
        (models / f"{name}.py").write_text("class LlamaForCausalLM: ...\n")
    (models / "mixed.py").write_text("from .exaone4 import MineDecoderLayer\n")

    def told(
        config: dict[str, Any], layer_ids: list[int] | None = None, length: int = 2048
    ) -> tuple[dict[str, str], list[str]]:
        whole = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, **config}
        (tmp_path / "config.json").write_text(json.dumps(whole))
        config = read_config(tmp_path)
        return model_facts(config, SourceLens({"vllm": tmp_path / "vllm"}), layer_ids, length)

    return told


def test_a_plain_model_is_described_and_has_no_problem(facts: Facts) -> None:
    found, problems = facts({"num_hidden_layers": 32, "torch_dtype": "bfloat16"})
    assert problems == []
    assert found["this vLLM has it"] == "vllm.model_executor.models.llama:LlamaForCausalLM"
    assert found["capture"] == "hooks on the decoder layers: hidden + residual"
    assert found["layer ids"].startswith("[2, 16, 29, 31] as outputs")
    assert "[3, 17, 30, 32] as vLLM's" in found["layer ids"]
    assert "speculators alone" not in found


def test_the_size_of_the_states_is_that_of_the_ids_the_dtype_and_the_length(facts: Facts) -> None:
    found, _ = facts({"num_hidden_layers": 32, "dtype": "float32"}, [1, 5], 100)
    assert found["states"] == (
        "32,768 bytes per token in float32; 3.3 GB per 1,000 samples of 100 tokens"
    )


@pytest.mark.parametrize("key", ["text_config", "thinker_config", "language_config"])
def test_the_layers_of_a_nested_config_are_found(facts: Facts, key: str) -> None:
    found, problems = facts({key: {"num_hidden_layers": 28, "hidden_size": 64}})
    assert found["decoder layers"] == f"28, by {key}"
    assert not problems
    alone = found.get("speculators alone", "")
    assert ("finds no number of layers" in alone) is (key != "text_config")


def test_a_config_nested_twice_is_found(facts: Facts) -> None:
    text = {"num_hidden_layers": 28, "hidden_size": 64}
    found, problems = facts({"thinker_config": {"text_config": text}})
    assert found["decoder layers"] == "28, by thinker_config.text_config"
    assert not problems
    assert "which is in thinker_config.text_config" in found["speculators alone"]


@pytest.mark.parametrize("layers", [1, 2])
def test_too_few_layers_for_the_default_ids_are_a_problem(facts: Facts, layers: int) -> None:
    _, problems = facts({"num_hidden_layers": layers})
    assert "of the defaults" in problems[0]
    assert facts({"num_hidden_layers": layers}, [0])[1] == []


def test_default_ids_that_repeat_are_told(facts: Facts) -> None:
    found, problems = facts({"num_hidden_layers": 4})
    assert problems == []
    assert "returns the layers [1, 2, 3] for [2, 2, 1, 3]" in found["speculators alone"]


def test_ids_outside_of_the_model_are_a_problem(facts: Facts) -> None:
    assert facts({"num_hidden_layers": 32}, [2, 32])[1] == [
        "layer ids [32] of yours are not in [0, 31]: pass layer_ids that are"
    ]


def test_a_family_whose_outputs_are_no_states_is_a_problem(facts: Facts) -> None:
    config = {"architectures": ["InklingForCausalLM"], "num_hidden_layers": 61}
    found, problems = facts(config)
    assert found["capture"] == "not possible"
    assert "inkling" in problems[0]


def test_a_family_that_vllm_has_to_put_out_itself_is_known(facts: Facts) -> None:
    found, problems = facts({"architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 61})
    assert problems == []
    assert "auxiliary outputs" in found["capture"]


@pytest.mark.parametrize("architecture", ["ExaoneForCausalLM", "MixedForCausalLM"])
def test_a_family_whose_hidden_states_are_whole_is_known(facts: Facts, architecture: str) -> None:
    found, problems = facts({"architectures": [architecture], "num_hidden_layers": 30})
    assert problems == []
    assert "have the residual already" in found["capture"]
    assert "adds the residual a second time" in found["speculators alone"]


def test_an_architecture_that_is_not_registered_is_told(facts: Facts) -> None:
    found, _ = facts({"architectures": ["NewForCausalLM"], "num_hidden_layers": 30})
    assert found["this vLLM has it"].startswith("no: ")


@pytest.mark.parametrize(
    ("config", "fact"),
    [
        ({"llama_4_scaling": {"beta": 0.1}}, "llama_4_scaling"),
        ({"vision_config": {"deepstack_visual_indexes": [5]}}, "deepstack"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "hybrid KV cache"),
        ({"mamba_d_state": 16}, "hybrid KV cache"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"auto_map": {"AutoConfig": "x.y"}}, "trust_remote_code"),
    ],
)
def test_what_is_special_about_a_model_is_told(
    facts: Facts, config: dict[str, Any], fact: str
) -> None:
    plain, _ = facts({"num_hidden_layers": 32})
    found, problems = facts({"num_hidden_layers": 32, **config})
    assert fact in found
    assert fact not in plain
    assert problems == []


def test_a_config_that_calls_its_layers_otherwise_is_understood(facts: Facts) -> None:
    assert facts({"n_layer": 12, "n_embd": 768})[0]["decoder layers"] == "12"
