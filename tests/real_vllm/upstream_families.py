"""Upstream's generator as it is, without specvllm_compat, on tiny models of several families.

What a CPU needs is given to it: free device memory, float32 where "auto" would choose half
precision, and norms without kernels, since those of the CPU misread strided inputs.
Arguments: folder for the models, report file.

Writes per family the largest relative difference from Hugging Face, or the failure.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import tiny
import torch
from families import BASE
from oracle import relative_error
from speculators.data_generation import vllm_hidden_states_generator as consumer
from transformers import AutoConfig, AutoModelForCausalLM
from vllm.config import CompilationConfig

LAYER_IDS = [0, 1, 2, 3]
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gemma2": {
        "head_dim": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": 32,
        "tie_word_embeddings": True,
    },
    "granite": {"residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    "exaone4": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 4},
    "gpt_neox": {"rotary_pct": 1.0, "num_key_value_heads": 4},
}


def make(name: str, folder: Path) -> Path:
    torch.manual_seed(11)
    config = AutoConfig.for_model(name, **{**BASE, **FAMILIES[name]})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    tiny.save_tokenizer(folder, BASE["vocab_size"])
    return folder


def attempt(model: Path) -> dict[str, Any]:
    """Few prompts, so that none of the faults of ``generate()`` itself shows."""
    prompts = [[7, 8, 9, 10], [300 + k for k in range(50)]]
    try:
        generator = consumer.VllmHiddenStatesGenerator(
            str(model), layer_ids=LAYER_IDS, max_model_len=128
        )
        results = generator.generate(prompts)
        generator.executor.shutdown()
    except Exception as error:  # noqa: BLE001 (it is what we want to see)
        return {"failure": re.sub(r"\[.*\]", "[…]", f"{type(error).__name__}: {error}")}
    errors = [
        relative_error(found, wanted)
        for result, prompt in zip(results, prompts, strict=True)
        for found, wanted in zip(
            result["hidden_states"], tiny.reference(model, prompt, LAYER_IDS), strict=True
        )
    ]
    return {"largest error": max(errors), "smallest error": min(errors)}


def main(folder: Path, report: Path) -> None:
    model, whole = consumer.ModelConfig, consumer.VllmConfig
    plain = CompilationConfig(custom_ops=["none"])
    consumer.ModelConfig = lambda **given: model(**{**given, "dtype": "float32"})
    consumer.VllmConfig = lambda **given: whole(**given, compilation_config=plain)
    consumer.mem_get_info = lambda: (2 << 30, 2 << 30)
    seen = {}
    for name in FAMILIES:
        seen[name] = attempt(make(name, folder / name))
        report.write_text(json.dumps(seen))  # what ends this process takes nothing else with it


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
