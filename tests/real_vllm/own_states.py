"""Three calls of the generator, compared with Hugging Face; the states are kept, bit for bit.

Runs with specvllm_compat, or without it where it is not installed, on a speculators that was
patched. Arguments: model folder, file for the states, report file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import tiny
import torch
from oracle import TALLY, check_results

WITH_US = importlib.util.find_spec("specvllm_compat") is not None
LAYER_IDS = [5, 0, 3, 3, 1]
MAX_MODEL_LEN = 256
# Two thirds of the prompts are longer than a step.
ENGINE_ARGS = {"dtype": "float32", "max_num_batched_tokens": 96}


def make_generator(model: Path) -> Any:
    """The generator with these engine arguments, which its own parameters can't give."""
    if WITH_US:
        import specvllm_compat

        specvllm_compat.configure(engine_args=ENGINE_ARGS)
    from speculators.data_generation import vllm_hidden_states_generator as consumer

    if not WITH_US:
        own = consumer.EngineArgs
        consumer.EngineArgs = lambda **arguments: own(**arguments | ENGINE_ARGS)
    return consumer.VllmHiddenStatesGenerator(
        str(model), layer_ids=list(LAYER_IDS), max_model_len=MAX_MODEL_LEN
    )


def batches() -> list[list[list[int]]]:
    """40 mixed prompts, one of them alone and again, and prompts that share a long prefix."""
    mixed = tiny.prompts(40, MAX_MODEL_LEN, seed=40)
    longest = max(mixed, key=len)
    prefix = [(11 * k) % 512 for k in range(120)]
    return [mixed, [longest], [*mixed[:12], longest], [[*prefix, n, n] for n in range(12)]]


def main(model: Path, states: Path, report: Path) -> None:
    generator = make_generator(model)
    kept = []
    for prompts in batches():
        results = generator.generate(prompts)
        check_results(results, prompts, model, LAYER_IDS)
        kept += [layer for result in results for layer in result["hidden_states"]]
    refused = []
    for bad in ([], [[]], [[1] * (MAX_MODEL_LEN + 1)], [[1, 512]], [["1"]], [1, 2]):
        try:
            generator.generate(bad)
        except (TypeError, ValueError) as error:
            refused.append(type(error).__name__)
    longest = [[k % 512 for k in range(MAX_MODEL_LEN)]]
    check_results(generator.generate(longest), longest, model, LAYER_IDS)
    torch.save(kept, states)
    seen = {"with_us": WITH_US, "refused": refused}
    report.write_text(json.dumps({**TALLY.as_json(), **seen}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
