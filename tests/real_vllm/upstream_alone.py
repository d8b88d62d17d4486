"""Upstream's generator as it is, without specvllm_compat. Arguments: model folder, report file.

Writes the type, the message and the function of the failure, or "nothing failed".
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path


def fail(error: Exception) -> dict[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame.name for frame in frames if "speculators" in frame.filename]
    return {
        "type": type(error).__name__,
        "message": str(error),
        "where": inside[-1] if inside else "",
    }


def attempt(model: Path) -> dict[str, str]:
    try:
        from speculators.data_generation.vllm_hidden_states_generator import (
            VllmHiddenStatesGenerator,
        )

        generator = VllmHiddenStatesGenerator(
            model_path=str(model), layer_ids=[0, 1], max_model_len=64
        )
        generator.generate([[1, 2, 3]])
    except Exception as error:  # noqa: BLE001 (it is what we want to see)
        return fail(error)
    return {"type": "", "message": "nothing failed", "where": ""}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(attempt(Path(sys.argv[1]))))
