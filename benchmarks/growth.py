"""Tokens per second against the number of prompts, their length, layers and width.

One thing at a time is changed. Prefill alone and ``generate()`` take turns.

    python benchmarks/growth.py [--rounds 7] [--save]
"""

from __future__ import annotations

import argparse
from typing import Any

import extraction
import models
import race
import results
from specvllm_compat.benchmarking.samples import rates, ratio, spread

BASE, SIZE = models.Shape(4, 1024, 64, 2, (0, 1, 2, 3)), race.Size(16, 512)
SIZES = (race.Size(1, 512), SIZE, race.Size(128, 512), race.Size(16, 32), race.Size(16, 2048))
SHAPES = (
    models.Shape(2, 1024, 64, 2, (0, 1)),
    models.Shape(12, 1024, 64, 2, (2, 6, 9, 11)),
    models.Shape(4, 256, 64, 2, (0, 1, 2, 3)),
    models.Shape(4, 4096, 64, 2, (0, 1, 2, 3)),
)
RIVALS = ("prefill", "generate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    results.add_options(parser)
    options = parser.parse_args()
    points: list[dict[str, Any]] = []
    for shape, sizes in ((BASE, SIZES), *((shape, (SIZE,)) for shape in SHAPES)):
        with race.loaded(RIVALS, shape, "float32") as rivals:
            for size in sizes:
                found = race.race(rivals, size, options.rounds)
                seconds = {name: extraction.seconds(seen) for name, seen in found.items()}
                points.append({"shape": vars(shape), "size": vars(size), "seconds": seconds})
                print(line(points[-1]), flush=True)
    results.save("growth", {"points": points}, options)


def line(point: dict[str, Any]) -> str:
    """One measured point."""
    shape, size = point["shape"], race.Size(**point["size"])
    speed = {name: rates(size.tokens, each) for name, each in point["seconds"].items()}
    shown = "   ".join(f"{n} {spread(each).median:9,.0f} tokens/s" for n, each in speed.items())
    of_prefill = ratio(speed["generate"], speed["prefill"]).text()
    return f"{shape['layers']:>3} x {shape['hidden']:<5} {size!s:<18} {shown}   {of_prefill}"


if __name__ == "__main__":
    main()
