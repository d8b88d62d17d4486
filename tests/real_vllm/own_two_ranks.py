"""Two ranks on two cores. Arguments: model folder, "tensor" or "pipeline", report file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import specvllm_compat
import tiny
from oracle import TALLY, check_results
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from specvllm_compat.engine import assembly
from specvllm_compat.engine.capture import Capture
from specvllm_compat.engine.families import CaptureError

LAYER_IDS = [5, 0, 2]


def break_the_copies(worker: Any) -> None:
    capture = Capture.of(worker)
    if capture.layer_ids:

        def fail(*_: Any) -> None:
            raise RuntimeError("no memory on the device")

        capture._writer.write = fail  # type: ignore[method-assign]


def break_the_second_rank(worker: Any) -> None:
    if worker.rank == 1:

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("this rank failed")

        worker.model_runner.model.forward = fail


def survive_a_copy_that_fails(generator: VllmHiddenStatesGenerator, model: Path) -> None:
    """The other rank's forward ends as well, so that the engine can go on."""
    generator.executor.collective_rpc(break_the_copies)
    prompts = tiny.prompts(12, 200, seed=2)
    with pytest.raises(CaptureError, match=r"decoder layer 0: RuntimeError.*no memory on"):
        generator.generate(prompts)
    generator._setup_capture()
    check_results(generator.generate(prompts), prompts, model, LAYER_IDS)


def end_with_a_rank_that_fails(generator: VllmHiddenStatesGenerator) -> None:
    """The other one waits for it in its forward for ever; the call does not."""
    os.environ["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = "2"
    assembly._CLEANING = 2.0
    generator.executor.collective_rpc(break_the_second_rank)
    with pytest.raises((RuntimeError, TimeoutError)):
        generator.generate([[5, 6, 7]])
    with pytest.raises(RuntimeError, match="cannot be used any more"):
        generator.generate([[5, 6, 7]])


def main(model: Path, kind: str, report: Path) -> None:
    engine_args = {"dtype": "float32", "max_num_batched_tokens": 96}
    specvllm_compat.configure(engine_args=engine_args | {f"{kind}_parallel_size": 2})
    generator = VllmHiddenStatesGenerator(
        model_path=str(model), layer_ids=LAYER_IDS, max_model_len=200
    )
    assert len(generator.executor.workers) == 2
    for call in range(2):
        prompts = tiny.prompts(12, 200, seed=call)
        check_results(generator.generate(prompts), prompts, model, LAYER_IDS)
    if kind == "tensor":
        survive_a_copy_that_fails(generator, model)
        end_with_a_rank_that_fails(generator)
    report.write_text(json.dumps(TALLY.as_json()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
