"""Hidden states by everyone who can extract them, against prefill that extracts nothing.

All rivals of one model are loaded side by side and take turns.

    python benchmarks/extraction.py [--models states-heavy] [--rivals prefill generate] [--rounds 5]
        [--prompts 16] [--length 512] [--dtype float32] [--save]
"""

from __future__ import annotations

import argparse
from typing import Any

import models
import race
import results
from specvllm_compat.benchmarking.samples import rates, ratio, spread

LIMIT = "prefill"
AGREE = 1e-2  # relative difference of norms: bfloat16 sums in other orders


def lines(found: dict[str, Any], tokens: int, bytes_per_token: int) -> list[str]:
    """A table of one race."""
    told = []
    limit = rates(tokens, seconds(found[LIMIT]))
    for name, seen in found.items():
        if "error" in seen:
            told.append(f"    {name:<16} cannot run here: {seen['error']}")
            continue
        speed = rates(tokens, seconds(seen))
        of_limit = ratio(speed, limit)
        states = "" if not seen["norms"] else f"{spread(speed).median * bytes_per_token / 1e9:6.3f}"
        told.append(
            f"    {name:<16} {spread(speed).text(',.0f'):>24} tokens/s  {states:>6} GB/s"
            f"  {of_limit.text('.3f')} of {LIMIT}"
        )
    return told


def seconds(seen: dict[str, Any]) -> list[float]:
    return [run["seconds"] for run in seen["runs"]]


def check_agreement(found: dict[str, Any]) -> None:
    """All rivals must have extracted the same states.

    Raises:
        SystemExit: somebody has others.
    """
    known = {name: seen["norms"] for name, seen in found.items() if seen.get("norms")}
    if not known:
        return
    first = next(iter(known.values()))
    for name, norms in known.items():
        if len(norms) != len(first) or any(
            abs(a - b) > AGREE * b for a, b in zip(norms, first, strict=True)
        ):
            raise SystemExit(f"{name} has other states than {next(iter(known))}: {norms}, {first}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=models.SHAPES, default=[*models.SHAPES])
    parser.add_argument("--rivals", nargs="+", default=[LIMIT, "LLM", "generate", "iter_generate"])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    results.add_options(parser)
    options = parser.parse_args()
    size = race.Size(options.prompts, options.length)
    for name in options.models:
        shape = models.SHAPES[name]
        per_token = shape.states_per_token(options.dtype)
        print(f"{name}: {size}, {per_token / 1024:.0f} KiB of states per token", flush=True)
        with race.loaded(options.rivals, shape, options.dtype) as rivals:
            found = race.race(rivals, size, options.rounds)
        check_agreement(found)
        print("\n".join(lines(found, size.tokens, per_token)), flush=True)
        results.save(
            f"extraction-{name}",
            {
                "shape": vars(shape),
                "dtype": options.dtype,
                "size": vars(size),
                "bytes_per_token": per_token,
                "rivals": found,
            },
            options,
        )


if __name__ == "__main__":
    main()
