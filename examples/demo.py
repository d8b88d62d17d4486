"""Hidden states of a tiny random Llama through speculators' own generator, on any vLLM.

    make demo

Only the second import below is ours; the rest is what a user of speculators writes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

# Only what goes wrong, from vLLM, its workers and their libraries.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
os.environ.update(QUIET)
warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "real_vllm"))

import specvllm_compat  # noqa: E402  # isort: skip
import tiny  # noqa: E402
from oracle import relative_error  # noqa: E402

LAYER_IDS = [1, 3, 5]


def main(folder: Path) -> None:
    model = tiny.make_llama(folder, layers=6)
    specvllm_compat.configure(engine_args={"dtype": "float32", "use_tqdm_on_load": False})
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    generator = VllmHiddenStatesGenerator(
        model_path=str(model), layer_ids=LAYER_IDS, max_model_len=512
    )
    sentences = tiny.SENTENCES[:4]
    prompts = [generator.tokenizer.encode(sentence) for sentence in sentences]
    results = generator.generate(prompts)

    import vllm
    from specvllm_compat.shims import CATALOG

    others = ("speculators", "transformers", "torch")
    versions = [f"vllm {vllm.__version__}", *(f"{name} {version(name)}" for name in others)]
    print("\n" + "   ".join(versions))

    print("\nWhat was adapted, and why")
    for shim, verdict, era in specvllm_compat.status():
        if verdict == "ADAPTED":
            print(f"  {shim:22} as of {era:7} {CATALOG[shim].does}")
    print("Its links and conditions: specvllm-compat explain NAME")

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
