"""vLLM's own auxiliary outputs of a model, set against what the hooks captured, bit for bit.

Auxiliary id L + 1 is the output of layer L. Releases up to 0.17 have none after the last layer.
"""

from __future__ import annotations

from typing import Any

import torch
from specvllm_compat.engine.families import decoder_layers


def backbone(worker: Any) -> torch.nn.Module | None:
    """The module that runs the decoder layers, if it has auxiliary outputs."""
    runner = worker.model_runner
    layers = decoder_layers(runner.model, worker.vllm_config.model_config)
    for module in runner.model.modules():
        if layers in module.children() and hasattr(module, "aux_hidden_state_layers"):
            return module
    return None


def start(worker: Any) -> bool:
    """In a worker: have the base model put out auxiliary states, and keep them."""
    model = backbone(worker)
    if model is None:
        return False
    capture, forward = worker.specvllm_capture, model.forward
    model.aux_hidden_state_layers = tuple(layer_id + 1 for layer_id in capture.layer_ids)

    def keeping(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if not isinstance(output, tuple):  # older releases: a list only if there is any
            output = output, []
        hidden, capture.auxiliary = output
        return hidden

    model.forward = keeping
    return True


def differing(worker: Any, rows: int) -> tuple[int, list[int]]:
    """In a worker: how many of the last step's layers are in both, and which of them differ."""
    model, capture = backbone(worker), worker.specvllm_capture
    del model.forward
    model.aux_hidden_state_layers = ()
    pairs = list(zip(capture.layer_ids, capture.auxiliary, capture.states, strict=False))
    return len(pairs), [
        layer_id
        for layer_id, auxiliary, states in pairs
        if not torch.equal(states[:rows], auxiliary[:rows])
    ]


def compared(generator: Any, prompt: list[int]) -> int | None:
    """How many layers are bit-identical in both; None if the model has no auxiliary outputs.

    Raises:
        AssertionError: some layers differ, or too few came.
    """
    rpc = generator.executor.collective_rpc
    if not all(rpc(start)):
        return None
    generator.generate([prompt])
    [(count, layer_ids)] = rpc(differing, args=(len(prompt),))
    assert not layer_ids, f"layers {layer_ids} differ from their auxiliary outputs"
    layers = len(set(generator.layer_ids))
    assert count >= layers - 1, f"{count} auxiliary outputs for {layers} layers"
    return count
