"""vLLM's own auxiliary outputs: a second source of the same states, independent of our hooks.

Runs in the workers. Auxiliary id L + 1 is the output of decoder layer L; before vLLM 0.18.0 there
is none after the last layer.
"""

from __future__ import annotations

from typing import Any

import torch
from specvllm_compat.engine.families import decoder_layers, needs_auxiliary_outputs

_KEPT = "specvllm_auxiliary"


def keep(worker: Any, layer_ids: list[int]) -> bool:
    """Have the base model put out auxiliary states, and keep them.

    False if it has none, or if they are where the states come from in the first place.
    """
    model = worker.model_runner.model
    layers = decoder_layers(model, worker.vllm_config.model_config)
    base = next(m for m in model.modules() if any(child is layers for child in m.children()))
    if not hasattr(base, "aux_hidden_state_layers") or needs_auxiliary_outputs(layers[0]):
        return False
    kept: list[list[torch.Tensor]] = []
    before, forward = base.aux_hidden_state_layers, base.forward
    replaced = {name: vars(base)[name] for name in ("forward",) if name in vars(base)}
    base.aux_hidden_state_layers = tuple(layer_id + 1 for layer_id in layer_ids)

    def keeping(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if not isinstance(output, tuple):  # none of the layers has an auxiliary output
            return output
        hidden, auxiliary = output
        kept.append([states.cpu() for states in auxiliary])
        return hidden

    def stop() -> list[list[torch.Tensor]]:
        del base.forward
        vars(base).update(replaced)
        base.aux_hidden_state_layers = before
        return kept

    base.forward = keeping
    setattr(worker, _KEPT, stop)
    return True


def take(worker: Any) -> list[list[torch.Tensor]]:
    """Per forward the states of each layer, [rows, hidden]; the model is as it was again."""
    stop = getattr(worker, _KEPT)
    delattr(worker, _KEPT)
    kept: list[list[torch.Tensor]] = stop()
    return kept
