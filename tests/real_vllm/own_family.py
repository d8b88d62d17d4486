"""One family on a real engine against Hugging Face.

Arguments: name of the family, folder for the model, report file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import specvllm_compat
import tiny
import torch
from families import BASE, FAMILIES
from oracle import TALLY, check_results
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from transformers import AutoConfig, AutoModelForCausalLM

LAYER_IDS = [3, 0, 2, 1]


def main(name: str, folder: Path, report: Path) -> None:
    family = FAMILIES[name]
    torch.manual_seed(11)
    config = AutoConfig.for_model(family.model_type, **{**BASE, **family.config})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    tiny.save_tokenizer(folder, BASE["vocab_size"])
    engine_args = {"dtype": "float32", "max_num_batched_tokens": 512, **family.engine_args}
    specvllm_compat.configure(engine_args=engine_args)
    generator = VllmHiddenStatesGenerator(str(folder), layer_ids=LAYER_IDS, max_model_len=200)
    prompts = [*tiny.prompts(9, 200, seed=5), [9] * 200]
    check_results(generator.generate(prompts), prompts, folder, LAYER_IDS)
    report.write_text(json.dumps(TALLY.as_json()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
