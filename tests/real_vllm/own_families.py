"""Families on real engines, one after the other in this process, against Hugging Face.

Arguments: folder for the models, report file, names of families. The report is written after each
family, so that what ended this process took nothing else with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import auxiliary_outputs
import specvllm_compat
import tiny
import torch
from families import BASE, FAMILIES, Family, release
from oracle import relative_error
from safetensors.torch import load_file, save_file
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from specvllm_compat.engine import families as engine_families
from transformers import AutoConfig
from vllm.model_executor.models import registry

LAYER_IDS = [3, 0, 2, 1]
MAX_MODEL_LEN = 200
LONGEST = 120
"""Seconds for one family; what takes longer ends this process."""


class Generator(VllmHiddenStatesGenerator):
    """Its worker is forked: it has imported everything already (vLLM insists on spawn here)."""

    def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
        config = super()._create_vllm_config(*args, **kwargs)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        # vLLM's worker looks into every object it finds, and one of this module's can't be.
        sys.modules.pop("llvmlite.binding.ffi", None)
        return config


@contextlib.contextmanager
def generator(folder: Path, family: Family, dtype: str) -> Iterator[Any]:
    """A generator for the model in ``folder``, and the end of its worker."""
    engine_args = {"dtype": dtype, "max_num_batched_tokens": 512, **family.engine_args}
    specvllm_compat.configure(engine_args=engine_args)
    by_auxiliary_outputs = {family.model_type} if family.by_auxiliary_outputs else set()
    # The worker is forked: it sees this, too.
    with (
        patch.object(engine_families, "AUXILIARY", frozenset(by_auxiliary_outputs)),
        Generator(str(folder), layer_ids=LAYER_IDS, max_model_len=MAX_MODEL_LEN) as made,
    ):
        yield made
    gc.collect()


def save(family: Family, folder: Path) -> Path:
    """A random float32 model of this family in ``folder``; the folder of Hugging Face's.

    Its weights are numbers that bfloat16 has, too: rounding them is no error of ours.
    """
    torch.manual_seed(11)
    config = AutoConfig.for_model(family.model_type, **family.config)
    inner = folder / "language_model" if family.wrapper else folder
    model = tiny.auto_class(config).from_config(config)
    model.bfloat16().float().save_pretrained(inner)
    told = json.loads((inner / "config.json").read_text())
    told.pop("auto_map", None)  # no code comes with it
    if family.architecture:
        told["architectures"] = [family.architecture]
    if family.wrapper:
        told = {**family.wrapper, "text_config": told}
        weights = load_file(inner / "model.safetensors")
        weights = {f"language_model.{name}": weight for name, weight in weights.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(told))
    tiny.save_tokenizer(folder, BASE["vocab_size"])
    for name, content in family.files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)
    return inner


def largest_error(results: list[dict[str, Any]], prompts: list[list[int]], folder: Path) -> float:
    """The largest relative error of all prompts and layers; NaN if there is one."""
    errors = [
        relative_error(found, wanted)
        for result, prompt in zip(results, prompts, strict=True)
        for found, wanted in zip(
            result["hidden_states"], tiny.reference(folder, prompt, LAYER_IDS), strict=True
        )
    ]
    return float(torch.tensor(errors).max())


def examine(name: str, folder: Path) -> dict[str, Any]:
    """States against Hugging Face's, and hooks against auxiliary outputs in both types."""
    family = FAMILIES[name]
    seen: dict[str, Any] = {}
    reference = save(family, folder)
    prompts = [*tiny.prompts(9, MAX_MODEL_LEN - 1, seed=5), [9] * (MAX_MODEL_LEN - 1)]
    bfloat16_only = release() in family.bfloat16_in
    for dtype in ("bfloat16",) if bfloat16_only else ("float32", "bfloat16"):
        with generator(folder, family, dtype) as made:
            if not seen:
                error = largest_error(made.generate(prompts), prompts, reference)
                seen |= {"prompts": len(prompts), "dtype": dtype, "error": error}
            compared = auxiliary_outputs.compared(made, prompts[-1])
        if compared is None:
            break
        seen.setdefault("auxiliary", {})[dtype] = compared
    return seen


def reason(error: Exception, log: str) -> str:
    """The first error that a worker wrote down, else the one that arrived here."""
    lines = [line.partition("] ")[2] for line in log.splitlines() if " ERROR " in line]
    for before, line in zip(["", *lines], lines, strict=False):
        if re.match(r"\w+(Error|Exception)\b", line):
            return line if ":" in line else f"{line}: {before.strip()}"
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def output_into(path: Path) -> Iterator[None]:
    """What this process and its children write goes into a file."""
    kept = [os.dup(1), os.dup(2)]
    with path.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in zip((1, 2), kept, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def let_experts_run() -> None:
    """vLLM 0.20.2 makes an operator in each forward, where none can be made: so does `vllm.LLM`.

    Its own code of that operator takes its place.
    """
    if release() == "0.20.2":
        from vllm.model_executor.layers.activation import SiluAndMul
        from vllm.model_executor.layers.fused_moe import cpu_fused_moe

        silu = cpu_fused_moe.MoEActivation.SILU
        cpu_fused_moe._CPU_MOE_ACT_FN[silu] = SiluAndMul.forward_native


def main(folder: Path, report: Path, names: list[str]) -> None:
    torch.set_num_threads(1)  # a process whose OpenMP has threads can't be forked
    # vLLM looks at a class in a process that imports everything again; that is for GPUs.
    registry._run_in_subprocess = lambda look: look()
    let_experts_run()
    seen: dict[str, dict[str, Any]] = {}
    for name in names:
        started = time.monotonic()
        log = folder / f"{name}.log"
        with output_into(log):
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            try:
                seen[name] = examine(name, folder / name)
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                seen[name] = {"reason": reason(error, log.read_text(errors="replace"))}
        seen[name]["seconds"] = round(time.monotonic() - started)
        report.write_text(json.dumps(seen, indent=1))
        tiny.forget()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
