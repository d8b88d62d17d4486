"""``extract`` end to end against ``generate()`` alone, on the same prompts and the same engine.

Interleaved on one generator. ``extract`` is timed from its first prompt to its last file in place:
reading rows, computing, hashing, writing and recording. Prints seconds, spread, and the ratio of
throughputs.

    python benchmarks/extract_end_to_end.py [--model DIR] [--samples 64] [--repetitions 5]

Without ``--model`` a random Llama of 30 million weights is made.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LENGTH = 512


def make_model(folder: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "real_vllm"))
    import tiny

    return tiny.make_llama(folder / "llama", layers=8, hidden=512, heads=8, kv_heads=4, vocab=512)


def write_prompts(path: Path, samples: int) -> list[list[int]]:
    draw = random.Random(0)
    prompts = [
        [draw.randrange(512) for _ in range(draw.randint(LENGTH // 4, LENGTH))]
        for _ in range(samples)
    ]
    path.write_text("".join(json.dumps({"input_ids": prompt}) + "\n" for prompt in prompts))
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    import specvllm_compat  # noqa: F401  # before speculators
    from speculators.data_generation import vllm_hidden_states_generator as module
    from specvllm_compat.extraction import extracting
    from specvllm_compat.extraction.engine import engine

    made: list[Any] = []
    own = module.VllmHiddenStatesGenerator
    module.VllmHiddenStatesGenerator = lambda *a, **k: made.append(own(*a, **k)) or made[-1]
    seconds: dict[str, list[float]] = {"generate()": [], "extract": []}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        model = options.model or make_model(folder)
        prompts = write_prompts(folder / "rows.jsonl", options.samples)
        layers = extracting.read_model(str(model)).check_layer_ids(None)
        produce = stack.enter_context(engine(str(model), layers, LENGTH, 2048, {}))
        [generator] = made
        generator.generate(prompts)  # warm

        @contextlib.contextmanager
        def running(*_: Any) -> Iterator[Any]:
            nonlocal started
            started = time.perf_counter()
            yield produce

        extracting.engine = running
        for repetition in range(options.repetitions):
            started = time.perf_counter()
            generator.generate(prompts)
            seconds["generate()"].append(time.perf_counter() - started)
            extracting.extract(
                model=str(model),
                data=str(folder / "rows.jsonl"),
                output_dir=folder / f"states-{repetition}",
                max_model_len=LENGTH,
                batch_tokens=2048,
            )
            seconds["extract"].append(time.perf_counter() - started)
    tokens = sum(map(len, prompts))
    for what, times in seconds.items():
        median = statistics.median(times)
        spread = [round(value, 2) for value in sorted(times)]
        print(f"{what:<12} {median:.2f} s {spread}   {tokens / median:,.0f} tokens/s")
    ratios = [a / b for a, b in zip(seconds["generate()"], seconds["extract"], strict=True)]
    print(f"throughput of extract / generate(): {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
