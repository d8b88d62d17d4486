"""States from a worker to the driver and nothing else: ours, vLLM's pickling RPC, and a plain copy.

python benchmarks/transport.py [--rows 8192] [--hidden 4096] [--rounds 7] [--save]
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import memory_use
import models
import results
import rivals
from specvllm_compat.benchmarking.carrying import Carrier, Step
from specvllm_compat.benchmarking.machine import copying
from specvllm_compat.benchmarking.samples import rates, ratio, spread

STEPS = 4


def states_of(worker: Any, layers: int, rows: int, hidden: int, dtype: str) -> Any:
    """In vLLM's worker: the same tensors, made once."""
    import torch

    if not hasattr(worker, "benchmark_states"):
        layer = torch.randn(rows, hidden).to(getattr(torch, dtype))
        worker.benchmark_states = [layer.clone() for _ in range(layers)]
    return worker.benchmark_states


class Pickling:
    """vLLM's ``collective_rpc``; its worker stands still but for its turns, as it waits by
    spinning."""

    def __init__(self, step: Step, folder: Path) -> None:
        model = models.make(folder, models.Shape(2, 256, 64, 2, (0,)), "float32")
        settings = {
            "model": str(model),
            "dtype": "float32",
            "max_model_len": 64,
            "max_num_batched_tokens": 512,
        }
        self._engine = rivals.Prefill(settings)
        self._workers = memory_use.workers(os.getpid())
        self._arguments = (step.layers, step.rows, step.hidden, step.dtype)
        self.run(1)

    def run(self, steps: int) -> float:
        self._signal(signal.SIGCONT)
        started = time.perf_counter()
        for _ in range(steps):
            self._engine.core.model_executor.collective_rpc(states_of, args=self._arguments)
        seconds = time.perf_counter() - started
        self._signal(signal.SIGSTOP)
        return seconds

    def end(self) -> None:
        self._signal(signal.SIGCONT)
        self._engine.core.shutdown()

    def _signal(self, number: int) -> None:
        for process in self._workers:
            os.kill(process, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8192, help="of a step")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--length", type=int, default=512, help="of a prompt")
    parser.add_argument("--rounds", type=int, default=7)
    results.add_options(parser)
    options = parser.parse_args()
    step = Step(4, options.rows, options.hidden, "bfloat16", options.length)
    speeds: dict[str, list[float]] = {"transport": [], "pickling": [], "copy": []}
    with tempfile.TemporaryDirectory() as folder:
        pickling = Pickling(step, Path(folder))
        with Carrier(step) as carrier:
            for _ in range(options.rounds):
                speeds["transport"] += rates(STEPS * step.bytes / 1e9, [carrier.run(STEPS)])
                speeds["pickling"] += rates(step.bytes / 1e9, [pickling.run(1)])
                speeds["copy"] += rates(step.bytes / 1e9, copying(step.bytes, 2)[1:])
        pickling.end()
    print(f"a step of 4 layers x {step.rows} x {step.hidden}: {step.bytes / 2**20:.0f} MiB")
    for name, seen in speeds.items():
        print(
            f"  {name:<10} {spread(seen).text():>24} GB/s   "
            f"transport is {ratio(speeds['transport'], seen).text()} times that"
        )
    results.save("transport", {"step": vars(step), "speeds": speeds}, options)


if __name__ == "__main__":
    main()
