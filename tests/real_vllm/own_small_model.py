"""A shallow model with default layer ids, in a subclass, its KV cache too small for the batch.

Arguments: model folder, report file.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import specvllm_compat
from oracle import TALLY, check_results
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

DEFAULT_LAYER_IDS = [2, 2, 1, 3]
MAX_MODEL_LEN = 1024
# A cache for little more than one prompt of the longest kind; the batches hold many times as much.
STARVED = {"block_size": 32, "num_gpu_blocks_override": 40}


class CountingGenerator(VllmHiddenStatesGenerator):
    """A user's subclass, whose workers are forked (vLLM insists on spawn for the CPU)."""

    calls = 0

    def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
        config = super()._create_vllm_config(*args, **kwargs)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        return config

    def generate(self, token_ids: Any) -> list[dict[str, Any]]:
        self.calls += 1
        results: list[dict[str, Any]] = super().generate(token_ids)
        return results


def refusal(model: Path, **engine_args: Any) -> str:
    """What is said about engine arguments that cannot be."""
    try:
        specvllm_compat.configure(engine_args=engine_args)
        VllmHiddenStatesGenerator(model_path=str(model), max_model_len=64)
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError(f"{engine_args} were accepted")


def main(model: Path, report: Path) -> None:
    refused = [
        refusal(model, max_num_seq=4),
        refusal(model, dtype="float32", distributed_executor_backend="external_launcher"),
    ]
    specvllm_compat.configure(engine_args=STARVED | {"dtype": "float32"})
    arguments: dict[str, Any] = {"model_path": str(model), "max_model_len": MAX_MODEL_LEN}
    if "max_num_batched_tokens" in inspect.signature(VllmHiddenStatesGenerator).parameters:
        arguments["max_num_batched_tokens"] = 2048
    generator = CountingGenerator(**arguments)
    assert generator.layer_ids == DEFAULT_LAYER_IDS, generator.layer_ids
    assert type(generator.executor.workers[0].proc).__name__ == "ForkProcess"
    for call, count in enumerate((33, 5)):
        prompts = [[(call + n * k) % 512 for k in range(1024 - 31 * n)] for n in range(count)]
        assert (
            sum(map(len, prompts)) > 3 * STARVED["block_size"] * STARVED["num_gpu_blocks_override"]
        )
        check_results(generator.generate(prompts), prompts, model, DEFAULT_LAYER_IDS)
    seen = {**TALLY.as_json(), "refusal": refused, "calls": generator.calls}
    workers = [handle.proc for handle in generator.executor.workers]
    del generator
    seen["alive after del"] = [worker.is_alive() for worker in workers]
    report.write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
