"""What the checks of captured states cost: one engine with them, and without.

Every value is checked to be finite and every layer not to be zero in the worker, and every row's
token to be the prompt's in the driver.

    python benchmarks/self_check.py [--models states-heavy] [--rounds 7] [--save]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import models
import results
import rivals
from specvllm_compat.benchmarking.samples import ratio, spread

PROMPTS, LENGTH = 16, 512


def check_values(worker: Any, on: bool) -> None:
    """In the worker: let the capture look at values, or not."""
    import types

    import torch
    from specvllm_compat.engine import capture

    if not hasattr(capture, "benchmark_original"):
        capture.benchmark_original = capture.Capture._check
    if on:
        capture.torch, capture.Capture._check = torch, capture.benchmark_original
        return
    nothing = torch.ones(())
    unchecked = types.ModuleType("torch")
    vars(unchecked).update(vars(torch))
    unchecked.linalg = types.SimpleNamespace(vector_norm=lambda states: nothing)
    capture.torch = unchecked
    capture.Capture._check = lambda self, labels, rows: self._writer.finish()


def check_tokens(on: bool) -> None:
    """In the driver: compare tokens, or not."""
    from specvllm_compat.engine import run

    if not hasattr(run, "benchmark_original"):
        run.benchmark_original = run.Rows.check
    run.Rows.check = run.benchmark_original if on else lambda self, start, token_ids: None


def measure(name: str, rounds: int) -> dict[str, list[float]]:
    """Seconds with checks and without, in turn."""
    shape = models.SHAPES[name]
    with tempfile.TemporaryDirectory() as folder:
        rival = rivals.Generate(
            {
                "model": str(models.make(Path(folder), shape, "float32")),
                "dtype": "float32",
                "layer_ids": list(shape.layer_ids),
                "max_model_len": LENGTH,
                "max_num_batched_tokens": 8192,
            }
        )
        seconds: dict[str, list[float]] = {"checked": [], "unchecked": []}
        for number in range(rounds + 1):
            prompts = rivals.random_prompts(PROMPTS, LENGTH, models.VOCABULARY, number)
            for way, seen in seconds.items():
                rival.generator.executor.collective_rpc(check_values, args=(way == "checked",))
                check_tokens(way == "checked")
                started = time.perf_counter()
                rival.generator.generate(prompts)
                if number:
                    seen.append(time.perf_counter() - started)
        rival.generator.executor.shutdown()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=models.SHAPES, default=["states-heavy"])
    parser.add_argument("--rounds", type=int, default=7)
    results.add_options(parser)
    options = parser.parse_args()
    found = {}
    for name in options.models:
        found[name] = measure(name, options.rounds)
        share = ratio(found[name]["checked"], found[name]["unchecked"])
        for way, seen in found[name].items():
            print(f"  {name}, {way:<10} {spread(seen).text('.3f')} s")
        print(f"  {name}: with checks {share.text('.3f')} times the time")
    results.save("self_check", {"models": found}, options)


if __name__ == "__main__":
    main()
