"""Upstream's generator as it is, without specvllm_compat, on tiny models of several families.

Two things are given to it that a CPU lacks: free device memory, and float32 where "auto" would
choose half precision. Arguments: folder for the models, report file, names of families.

Writes per family the largest relative difference from Hugging Face, or the failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tiny
import torch
from families import BASE, FAMILIES
from oracle import relative_error
from speculators.data_generation import vllm_hidden_states_generator as consumer
from transformers import AutoConfig, AutoModelForCausalLM

LAYER_IDS = [0, 1, 2, 3]


def make(name: str, folder: Path) -> Path:
    family = FAMILIES[name]
    torch.manual_seed(11)
    config = AutoConfig.for_model(family.model_type, **{**BASE, **family.config})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder / name)
    tiny.save_tokenizer(folder / name, BASE["vocab_size"])
    return folder / name


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
        return {"failure": f"{type(error).__name__}: {error}"}
    errors = [
        relative_error(found, wanted)
        for result, prompt in zip(results, prompts, strict=True)
        for found, wanted in zip(
            result["hidden_states"], tiny.reference(model, prompt, LAYER_IDS), strict=True
        )
    ]
    return {"error": max(errors), "smallest error": min(errors)}


def main(folder: Path, report: Path, *names: str) -> None:
    own = consumer.ModelConfig
    consumer.ModelConfig = lambda **given: own(**{**given, "dtype": "float32"})
    consumer.mem_get_info = lambda: (2 << 30, 2 << 30)
    report.write_text(json.dumps({name: attempt(make(name, folder)) for name in names}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
