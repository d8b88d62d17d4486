"""vLLM's auxiliary outputs, where a model has them, equal what the hooks capture, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYER_IDS

PROMPT = [(13 * k) % 512 for k in range(90)]
# Auxiliary id L + 1 is the output of layer L. Older releases have none after the last layer.
COMPARED = sorted(set(LAYER_IDS) - {5})


def keep_auxiliary_outputs(worker: Any, layer_ids: list[int]) -> bool:
    """In a worker: have the base model put out auxiliary states, and keep them on the capture."""
    model = worker.model_runner.model.model
    if not hasattr(model, "aux_hidden_state_layers"):
        return False
    model.aux_hidden_state_layers = tuple(layer_id + 1 for layer_id in layer_ids)
    capture, forward = worker.specvllm_capture, model.forward

    def keeping(*args: Any, **kwargs: Any) -> Any:
        hidden, capture.auxiliary = forward(*args, **kwargs)
        return hidden

    model.forward = keeping
    return True


def differing_layers(worker: Any, layer_ids: list[int]) -> list[int]:
    """In a worker: which of the last step's layers are not bit-identical in both."""
    model, capture = worker.model_runner.model.model, worker.specvllm_capture
    del model.forward
    model.aux_hidden_state_layers = ()
    found = zip(layer_ids, capture.auxiliary, strict=True)
    return [
        layer_id
        for layer_id, auxiliary in found
        if not torch.equal(capture.states[capture.layer_ids.index(layer_id), :90], auxiliary[:90])
    ]


def test_hooks_and_auxiliary_outputs_are_bit_identical(generator: Any, llama: Path) -> None:
    rpc = generator.executor.collective_rpc
    if not all(rpc(keep_auxiliary_outputs, args=(COMPARED,))):
        pytest.fail("this Llama has no auxiliary outputs")
    generator.generate([PROMPT])
    assert rpc(differing_layers, args=(COMPARED,)) == [[]]
