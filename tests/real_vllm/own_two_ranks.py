"""Two ranks on two cores. Arguments: model folder, "tensor" or "pipeline", report file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import specvllm_compat
import tiny
from oracle import TALLY, check_results
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

LAYER_IDS = [5, 0, 2]


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
    report.write_text(json.dumps(TALLY.as_json()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
