"""Starting the generator against starting ``vllm.LLM`` with the same engine arguments.

Each start is a fresh process; the two are interleaved. Prints seconds of the constructor, and
of the whole process up to the first result.

    python benchmarks/start_up.py [--model DIR] [--repetitions 5] [--save]

Without ``--model`` a tiny random Llama is made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import models
import results

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
SHAPE = models.Shape(6, 256, 512, 4, ())
ENGINE_ARGS = {"max_model_len": 256, "max_num_batched_tokens": 8192, "enforce_eager": True}


def start_generator(model: str) -> tuple[float, float]:
    import specvllm_compat  # noqa: F401
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    started = time.perf_counter()
    generator = VllmHiddenStatesGenerator(model, max_model_len=ENGINE_ARGS["max_model_len"])
    ready = time.perf_counter()
    generator.generate([PROMPT])
    return ready - started, time.perf_counter() - started


def start_llm(model: str) -> tuple[float, float]:
    from vllm import LLM, SamplingParams

    started = time.perf_counter()
    llm = LLM(
        model,
        gpu_memory_utilization=0.8,
        trust_remote_code=True,
        enable_prefix_caching=False,
        **ENGINE_ARGS,
    )
    ready = time.perf_counter()
    llm.generate([{"prompt_token_ids": PROMPT}], SamplingParams(max_tokens=1), use_tqdm=False)
    return ready - started, time.perf_counter() - started


STARTS = {"generator": start_generator, "LLM": start_llm}


def measure(name: str, model: str) -> dict[str, float]:
    started = time.perf_counter()
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        command = [sys.executable, __file__, "--start", name, "--model", model]
        subprocess.run([*command, "--report", report.name], check=True, stdout=subprocess.DEVNULL)
        constructor, first_result = json.load(report)
    return {
        "constructor": constructor,
        "to first result": first_result,
        "whole process": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--start", choices=STARTS, help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    results.add_options(parser)
    options = parser.parse_args()
    if options.start:
        seconds = STARTS[options.start](options.model)
        Path(options.report).write_text(json.dumps(seconds))
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or str(models.make(Path(folder), SHAPE, "float32"))
        for _ in range(options.repetitions):
            for name in STARTS:
                seen[name].append(measure(name, model))
    for part in ("constructor", "to first result", "whole process"):
        medians = {n: statistics.median(run[part] for run in runs) for n, runs in seen.items()}
        spread = {n: [round(run[part], 1) for run in runs] for n, runs in seen.items()}
        ratio = medians["generator"] / medians["LLM"]
        shown = "   ".join(f"{n} {medians[n]:.1f} s {sorted(spread[n])}" for n in seen)
        print(f"{part:<16} {shown}   ratio {ratio:.2f}")
    results.save("start_up", {"starts": seen}, options)


if __name__ == "__main__":
    main()
