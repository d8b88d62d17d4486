"""Where states come from: hooks on the decoder layers, or the model's own auxiliary outputs.

The latter are for layers that leave a part of the work to the layer after them, or carry several
streams: vLLM's model makes one state of what is there where a draft model asks for it. Auxiliary
id L + 1 is the output of layer L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from specvllm_compat.engine.families import CaptureError, needs_auxiliary_outputs

# What takes a layer's outputs, as a forward hook does.
Record = Callable[[torch.nn.Module, Any, Any], None]


def watch(
    model: torch.nn.Module,
    layers: torch.nn.ModuleList,
    layer_ids: Sequence[int],
    recorder: Callable[[int, torch.nn.Module], Record],
) -> Sequence[Any]:
    """Have each forward recorded by ``recorder(index, layer)``, until what is returned is removed.

    Raises:
        CaptureError: the states of this family are found nowhere.
    """
    here = [layers[layer_id] for layer_id in layer_ids]
    records = [recorder(index, layer) for index, layer in enumerate(here)]
    if needs_auxiliary_outputs(here[0]):
        return [AuxiliaryOutputs(model, layers, layer_ids, records)]
    return [
        layer.register_forward_hook(record) for layer, record in zip(here, records, strict=True)
    ]


class AuxiliaryOutputs:
    """Has a model put out the states of some layers in each forward, until it is removed."""

    def __init__(
        self,
        model: torch.nn.Module,
        layers: torch.nn.ModuleList,
        layer_ids: Sequence[int],
        records: Sequence[Record],
    ) -> None:
        owners = [module for module in model.modules() if layers in module.children()]
        if len(owners) != 1 or not hasattr(owners[0], "aux_hidden_state_layers"):
            raise CaptureError(
                f"{type(layers[layer_ids[0]]).__name__} puts out no states, and its model has no "
                "auxiliary outputs in this vLLM"
            )
        self._backbone = owners[0]
        self._backbone.aux_hidden_state_layers = tuple(layer_id + 1 for layer_id in layer_ids)
        forward = self._backbone.forward

        def recording(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            hidden, states = output if isinstance(output, tuple) else (output, [])
            if len(states) == len(records):  # of another number nobody knows whose they are
                for record, state in zip(records, states, strict=True):
                    record(self._backbone, args, state)
            return hidden

        self._backbone.forward = recording

    def remove(self) -> None:
        """Let the model run as if nothing had been asked of it."""
        del self._backbone.forward
        self._backbone.aux_hidden_state_layers = ()
