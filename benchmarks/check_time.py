"""What ``specvllm-compat check`` takes, beside what it saves: ``import vllm``.

Every measurement is a fresh process. "first" has an empty cache folder, "again" the one that the
first check filled.

    python benchmarks/check_time.py [repetitions]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECK = ("-c", "from specvllm_compat.cli import main; raise SystemExit(main())", "check")
SCRIPT = """
import specvllm_compat
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from vllm import LLM, SamplingParams

generator = VllmHiddenStatesGenerator("model", layer_ids=[1, 2])
LLM("model").generate(["text"], SamplingParams(max_tokens=1))
"""
CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096}


def seconds(arguments: tuple[str, ...], cache: Path) -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        script, model = Path(folder, "script.py"), Path(folder, "config.json")
        script.write_text(SCRIPT)
        model.write_text(json.dumps(CONFIG))
        whole = (*CHECK, str(script), "--model", folder)
        names = ("check, first", "check, again", "script and model, first", "and again")
        times: dict[str, list[float]] = {name: [] for name in (*names, "import vllm")}
        for _ in range(repetitions):
            for first, again, command in ((*names[:2], CHECK), (*names[2:], whole)):
                with tempfile.TemporaryDirectory() as cache:
                    times[first].append(seconds(command, Path(cache)))
                    times[again].append(seconds(command, Path(cache)))
            times["import vllm"].append(seconds(("-c", "import vllm"), Path(folder)))
    for name, seen in times.items():
        print(f"{name:<26} median {statistics.median(seen):6.2f} s   worst {max(seen):6.2f} s")


if __name__ == "__main__":
    main()
