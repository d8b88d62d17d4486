"""Memory against prompts: what states cost the worker and the driver at the peak of a call.

A worker's memory for states is how far its peak is above what it had after a first, short call,
less the same of a worker that captures nothing. The driver's is its peak above what it had before
the call; so results are in it, all of them with ``generate()`` and one at a time with
``iter_generate()``.

    python benchmarks/memory.py [--rivals generate iter_generate] [--prompts 1 16 128] [--save]
"""

from __future__ import annotations

import argparse
from typing import Any

import models
import race
import results

SHAPE = models.Shape(4, 1024, 64, 2, (0, 1, 2, 3))
LIMIT = "prefill"
LENGTH = 512
DTYPE = "float32"


def used(run: dict[str, Any], first: dict[str, Any]) -> dict[str, int]:
    """Bytes above what was there."""
    memory = run["memory"]
    return {
        "worker": memory["peak"]["workers"] - first["memory"]["after"]["workers"],
        "driver": memory["peak"]["driver"] - memory["before"]["driver"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", nargs="+", default=["generate", "iter_generate"])
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--calls", type=int, default=8, help="to see the driver grow, or not")
    results.add_options(parser)
    options = parser.parse_args()
    per_token = SHAPE.states_per_token(DTYPE)
    found: dict[str, Any] = {"bytes_per_token": per_token, "length": LENGTH, "prompts": {}}
    with race.loaded([LIMIT, *options.rivals], SHAPE, DTYPE) as rivals:
        first = {rival.name: rival.run(prompts=1, length=8, seed=0) for rival in rivals}
        for prompts in options.prompts:
            size = race.Size(prompts, LENGTH)
            runs = {rival.name: rival.run(**vars(size), seed=0) for rival in rivals}
            seen = {name: used(run, first[name]) for name, run in runs.items()}
            computing = seen.pop(LIMIT)["worker"]
            for memory in seen.values():
                memory["worker"] -= computing
            found["prompts"][prompts] = seen
            print(f"{size}: {size.tokens * per_token / 2**20:,.0f} MiB of states")
            for name, memory in seen.items():
                shown = "   ".join(
                    f"{who} {what / 2**20:6,.0f} MiB" for who, what in memory.items()
                )
                print(f"  {name:<18} {shown}", flush=True)
        found["driver_after_calls"] = {}
        for rival in rivals[1:]:
            calls = [rival.run(prompts=16, length=LENGTH, seed=n) for n in range(options.calls)]
            after = [call["memory"]["after"]["driver"] for call in calls]
            found["driver_after_calls"][rival.name] = after
            shown = " ".join(f"{(each - after[0]) / 2**20:+.1f}" for each in after[1:])
            print(f"  {rival.name:<18} driver, MiB against its first call of 16 prompts: {shown}")
    results.save("memory", found, options)


if __name__ == "__main__":
    main()
