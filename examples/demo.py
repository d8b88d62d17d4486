"""Hidden states of a tiny random Llama through speculators' own generator, on any vLLM.

    make demo

Only the second import below is ours; the rest is what a user of speculators writes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "real_vllm"))

import specvllm_compat  # isort: skip
import tiny
from oracle import relative_error

LAYER_IDS = [1, 3, 5]


def reasons() -> dict[str, str]:
    """Why each shim exists, from the catalog."""
    from specvllm_compat.shims import CATALOG

    return {name: shim.upstream.change for name, shim in dict(CATALOG).items()}


def main(folder: Path) -> None:
    model = tiny.make_llama(folder, layers=6)
    specvllm_compat.configure(engine_args={"dtype": "float32"})
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    generator = VllmHiddenStatesGenerator(
        model_path=str(model), layer_ids=LAYER_IDS, max_model_len=512
    )
    sentences = tiny.SENTENCES[:4]
    prompts = [generator.tokenizer.encode(sentence) for sentence in sentences]
    results = generator.generate(prompts)

    import speculators
    import torch
    import transformers
    import vllm

    modules = (vllm, speculators, transformers, torch)
    print("\n" + "   ".join(f"{m.__name__} {m.__version__}" for m in modules))

    print("\nWhat was adapted, and why")
    why = reasons()
    for shim, verdict, era in specvllm_compat.status():
        if verdict != "NATIVE":
            print(f"  {shim:24} {verdict:8} since {era:8} {why.get(shim, '')}")

    print(f"\nHidden states of layers {LAYER_IDS}")
    for sentence, result in zip(sentences, results, strict=True):
        shapes = " ".join(str(list(state.shape)) for state in result["hidden_states"])
        print(f"  {shapes}   {sentence[:48]}…")

    worst = max(
        relative_error(state, expected)
        for prompt, result in zip(prompts, results, strict=True)
        for state, expected in zip(
            result["hidden_states"], tiny.reference(model, prompt, LAYER_IDS), strict=True
        )
    )
    print(f"\nLargest relative difference from Hugging Face: {worst:.1e}")

    batch = tiny.prompts(100, 512, seed=1)
    tokens = sum(map(len, batch))
    started = time.perf_counter()
    generator.generate(batch)
    seconds = time.perf_counter() - started
    print(f"{len(batch)} prompts, {tokens} tokens: {tokens / seconds:,.0f} tokens per second")
    generator.executor.shutdown()


# vLLM's workers are spawned: they import this file again.
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
