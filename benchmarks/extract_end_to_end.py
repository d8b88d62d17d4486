"""``extract`` end to end against ``generate()`` alone, on the same prompts and the same engine.

In turn on one generator. ``extract`` is timed from its first prompt to its last file in place:
reading rows, computing, hashing, writing to disk and recording.

    python benchmarks/extract_end_to_end.py [--models compute-heavy] [--samples 64] [--rounds 5]
        [--save]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import results

LENGTH = 512
BATCH = 2048
DTYPE = "float32"  # many CPUs compute it faster than bfloat16

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def write_prompts(path: Path, samples: int) -> list[list[int]]:
    draw = random.Random(0)
    prompts = [
        [draw.randrange(models.VOCABULARY) for _ in range(draw.randint(LENGTH // 4, LENGTH))]
        for _ in range(samples)
    ]
    path.write_text("".join(json.dumps({"input_ids": prompt}) + "\n" for prompt in prompts))
    return prompts


def measure(shape: models.Shape, samples: int, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """Tokens, and seconds of each way in turn."""
    import specvllm_compat  # noqa: F401  # before speculators
    from speculators.data_generation import vllm_hidden_states_generator as module
    from specvllm_compat.extraction import engine, extracting

    own, made = module.VllmHiddenStatesGenerator, []
    arguments = {"dtype": DTYPE}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        stack.callback(setattr, module, "VllmHiddenStatesGenerator", own)
        stack.callback(setattr, extracting, "engine", extracting.engine)
        module.VllmHiddenStatesGenerator = lambda *a, **k: made.append(own(*a, **k)) or made[-1]
        folder = Path(name)
        model = str(models.make(folder / "model", shape, DTYPE))
        prompts = write_prompts(folder / "rows.jsonl", samples)
        loading = engine.engine(model, shape.layer_ids, LENGTH, BATCH, arguments)
        produce = stack.enter_context(loading)
        [generator] = made
        generator.generate(prompts)  # memory is taken into use
        loaded = 0.0

        @contextlib.contextmanager
        def running(*_: Any) -> Iterator[Any]:
            nonlocal loaded
            loaded = time.perf_counter()
            yield produce

        extracting.engine = running
        seconds: dict[str, list[float]] = {"generate": [], "extract": []}
        for number in range(rounds):
            started = time.perf_counter()
            generator.generate(prompts)
            seconds["generate"].append(time.perf_counter() - started)
            extracting.extract(
                model=model,
                data=str(folder / "rows.jsonl"),
                output_dir=folder / f"states-{number}",
                layer_ids=shape.layer_ids,
                max_model_len=LENGTH,
                batch_tokens=BATCH,
                engine_args=arguments,
            )
            seconds["extract"].append(time.perf_counter() - loaded)
    return sum(map(len, prompts)), seconds


def main() -> None:
    from specvllm_compat.benchmarking.samples import rates, ratio, spread

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=models.SHAPES, default=["states-heavy"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    results.add_options(parser)
    options = parser.parse_args()
    found = {}
    for name in options.models:
        shape = models.SHAPES[name]
        tokens, seconds = measure(shape, options.samples, options.rounds)
        speed = {way: rates(tokens, each) for way, each in seconds.items()}
        for way, each in speed.items():
            print(f"  {name}, {way:<10} {spread(each).text(',.0f')} tokens/s")
        share = ratio(speed["extract"], speed["generate"])
        print(f"  {name}: extract / generate() {share.text('.3f')}", flush=True)
        found[name] = {
            "tokens": tokens,
            "bytes_per_token": shape.states_per_token(DTYPE),
            "seconds": seconds,
        }
    results.save("extract", {"dtype": DTYPE, "models": found}, options)


if __name__ == "__main__":
    main()
