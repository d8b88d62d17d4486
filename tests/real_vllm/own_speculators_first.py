"""speculators is imported first; at the end the process is killed in the middle of a call.

With transformers 5 that import fails by itself; the user then imports specvllm_compat and retries.
Arguments: model folder, report file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

try:
    FIRST_IMPORT = "worked"
except Exception as error:  # noqa: BLE001 (it is what we want to see)
    FIRST_IMPORT = f"{type(error).__name__}: {error}"

import specvllm_compat  # isort: skip
import tiny  # isort: skip
from oracle import TALLY, check_results  # isort: skip
from speculators.data_generation.vllm_hidden_states_generator import (  # isort: skip
    VllmHiddenStatesGenerator,
)

LAYER_IDS = [3, 1]


def main(model: Path, report: Path) -> None:
    specvllm_compat.configure(engine_args={"dtype": "float32", "max_num_batched_tokens": 64})
    generator = VllmHiddenStatesGenerator(
        model_path=str(model), layer_ids=LAYER_IDS, max_model_len=128
    )
    prompts = tiny.prompts(15, 128, seed=15)
    check_results(generator.generate(prompts), prompts, model, LAYER_IDS)
    workers = [handle.proc.pid for handle in generator.executor.workers]
    seen = {**TALLY.as_json(), "first_import": FIRST_IMPORT, "workers": workers}
    report.write_text(json.dumps(seen))

    steps, schedule = 0, generator.scheduler.schedule

    def killed(*arguments: object) -> object:
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return schedule(*arguments)

    generator.scheduler.schedule = killed
    generator.generate(prompts)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
