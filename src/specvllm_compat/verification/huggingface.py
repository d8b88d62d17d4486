"""Hugging Face's states of the same prompts, in the same dtype, on the CPU, layer by layer.

Hooks on its decoder layers see what comes out of them before the final norm; the last entry of
``output_hidden_states`` is normed. Each layer's output is compared as it comes; of one prompt at a
time those of the captured layers are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from specvllm_compat.engine.families import decoder_layers
from specvllm_compat.hub import model_folder
from specvllm_compat.verification.agreement import Pair, compare, errors
from specvllm_compat.verification.report import NOT_RUN, OK, WRONG, Check
from specvllm_compat.verification.runs import Found

_STATES = ("Hugging Face", "its states, same dtype, eager attention; each alone")
_NEAREST = ("nearest layer", "of all layers of Hugging Face, each is nearest to its own")
_ROOM = 1.25  # of the weights: what a forward and loading need on top


def check(model: str, model_config: Any, found: Found) -> list[Check]:
    """Two checks: how far off, and whether each layer is nearest to itself.

    ``model_config`` is vLLM's. The second needs no limit, so it tells neighbouring layers apart
    where rounding is coarse.
    """
    reason = _impossible(model, model_config, found)
    if reason:
        return [Check(*_STATES, NOT_RUN, remark=reason)]
    distances = _Distances(found)
    try:
        reference = _load(model, model_config)
        layers = decoder_layers(reference, model_config)
        result = compare(*_STATES, distances.pairs(reference, layers), found.limits.at)
    except Exception as error:  # noqa: BLE001  # that transformers can't run it is no fault of vLLM's
        text = f"transformers can't run it: {type(error).__name__}: {error}"
        return [Check(*_STATES, NOT_RUN, remark=text)]
    return [result, distances.check()]


def _impossible(model: str, model_config: Any, found: Found) -> str:
    if not found.alone:
        return "there are no states to compare"
    if model_config.quantization:
        return f"the weights are quantized ({model_config.quantization}): vLLM's kernels round"
    folder = model_folder(model)
    needed = _ROOM * _bytes_of_weights(folder, model_config)
    free = psutil.virtual_memory().available
    if needed > free:
        return (
            f"the model needs {needed / 1e9:.1f} GB of memory on the CPU, {free / 1e9:.1f} are free"
        )
    return ""


def _bytes_of_weights(folder: Path, model_config: Any) -> float:
    """In the dtype that vLLM runs; the files may hold another."""
    files = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    stored = getattr(model_config.hf_config, "dtype", None) or model_config.dtype
    run: int = model_config.dtype.itemsize
    scale = run / getattr(stored, "itemsize", run)
    return sum(file.stat().st_size for file in files) * max(1.0, scale)


def _load(model: str, model_config: Any) -> torch.nn.Module:
    import transformers

    # The class that the config names: AutoModelForCausalLM does not know multimodal models.
    [architecture, *_] = model_config.architectures
    loader = getattr(transformers, architecture, transformers.AutoModelForCausalLM)
    loaded: torch.nn.Module = loader.from_pretrained(
        model, dtype=model_config.dtype, attn_implementation="eager", trust_remote_code=True
    )
    return loaded.eval()


class _Distances:
    """Runs the reference, and sums up how far each captured layer is from each of its layers."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._sums: dict[int, dict[int, float]] = {i: {} for i in set(found.layer_ids)}

    def pairs(self, reference: torch.nn.Module, layers: torch.nn.ModuleList) -> Iterator[Pair]:
        for n, prompt in enumerate(self._found.prompts):
            ours = dict(zip(self._found.layer_ids, self._found.alone[n], strict=True))
            yield from self._forward(f"prompt {n}", prompt, ours, reference, layers)

    def _forward(
        self,
        where: str,
        prompt: list[int],
        ours: dict[int, torch.Tensor],
        reference: torch.nn.Module,
        layers: torch.nn.ModuleList,
    ) -> list[Pair]:
        pairs: list[Pair] = []

        def seen(index: int, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            hidden = hidden.reshape(-1, hidden.shape[-1])
            for layer_id, states in ours.items():
                distance = float(errors(states, hidden).mean())
                sums = self._sums[layer_id]
                sums[index] = sums.get(index, 0.0) + distance
            if index in ours:
                pairs.append((where, [index], [ours[index]], [hidden.clone()]))

        handles = [
            layer.register_forward_hook(lambda _m, _i, output, index=index: seen(index, output))
            for index, layer in enumerate(layers)
        ]
        try:
            with torch.inference_mode():
                reference(input_ids=torch.tensor([prompt]), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return pairs

    def check(self) -> Check:
        worst, remark = 0.0, ""
        for layer_id, sums in self._sums.items():
            own = sums[layer_id]
            other = min((i for i in sums if i != layer_id), key=sums.__getitem__, default=None)
            if other is None:
                continue
            ratio = own / sums[other] if sums[other] else math.inf
            if ratio > worst:
                worst = ratio
                remark = f"layer {layer_id} holds the states of layer {other}"
        wrong = worst > 1
        return Check(*_NEAREST, WRONG if wrong else OK, worst, 1.0, remark if wrong else "")
