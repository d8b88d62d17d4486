"""Worker side: where states come from, and which row belongs to which token of which request.

Forward hooks sit on the requested decoder layers; the model's own forward runs unchanged. A step's
rows are labelled from the model runner's own batch order. Warm-up and profiling forwards have no
requests and are not captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from specvllm_compat.engine.transport import Segment, create

# Rows of a step in order: (request id, position of the first token, number of tokens)
Labels = list[tuple[str, int, int]]

# The residual is in the hidden states already when these layers return both.
# https://github.com/vllm-project/vllm/tree/v0.32.0/vllm/model_executor/models (0.11.0 ... 0.33.0)
_HIDDEN_IS_FULL = frozenset(
    ("exaone4", "granitemoehybrid", "hyperclovax", "minicpm", "muse_glimmer", "phimoe", "stablelm")
)
# Layers whose outputs are not the states: un-reduced across tensor-parallel ranks, or carried in
# further tensors. By the folder or file that defines them.
_UNREADABLE = frozenset(
    (
        "beam",
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_v41",
        "inkling",
        "kimi_k3",
        "minimax_m3",
        "qwen4_exp",
    )
)
_ATTRIBUTE = "specvllm_capture"


class CaptureError(RuntimeError):
    """States could not be attributed to their tokens; nothing of the step is used."""


@dataclass(frozen=True)
class Description:
    """What one worker captures; ``layer_ids`` is empty where another rank holds the same states."""

    layer_ids: tuple[int, ...]
    segment: Segment | None


class Capture:
    """The states of the requested layers in one worker, step by step.

    States are [layers, rows, hidden] in the model's dtype, on the CPU. A step's states are valid
    until the next step begins; `take` hands its labels over, `reset` drops what was not taken.
    """

    def __init__(self, worker: Any, layer_ids: list[int]) -> None:
        self._worker = worker
        self._runner = worker.model_runner
        if not hasattr(self._runner, "input_batch"):
            raise CaptureError(
                f"{type(self._runner).__module__}.{type(self._runner).__name__} keeps no batch "
                "order that rows could be attributed by. Set VLLM_USE_V2_MODEL_RUNNER=0."
            )
        config = worker.vllm_config
        layers = decoder_layers(self._runner.model, config.model_config)
        self.layer_ids = tuple(i for i in sorted(set(layer_ids)) if _is_here(layers[i]))
        if not _is_first_of_its_stage():  # every tensor-parallel rank computes the same states
            self.layer_ids = ()
        self._handles = []
        self._rows = 0  # of the running step; 0 outside of steps
        self._seen: set[int] = set()
        self._labels: Labels | None = None
        self._untaken: list[tuple[Labels, torch.Tensor]] = []
        self.description = Description(self.layer_ids, None)
        if not self.layer_ids:
            return
        refuse_unreadable(layers[self.layer_ids[0]])
        segment = create(
            len(self.layer_ids),
            config.scheduler_config.max_num_batched_tokens,
            config.model_config.get_hidden_size(),
            config.model_config.dtype,
        )
        self.description = Description(self.layer_ids, segment)
        self.states = segment.map()
        for index, layer_id in enumerate(self.layer_ids):
            hook = self._recorder(index, layers[layer_id])
            self._handles.append(layers[layer_id].register_forward_hook(hook))
        self._execute_model = worker.execute_model
        worker.execute_model = self._execute

    @classmethod
    def start(cls, worker: Any, layer_ids: list[int]) -> Capture:
        """Capture these layers from now on, in place of what was captured before."""
        if (running := getattr(worker, _ATTRIBUTE, None)) is not None:
            running._stop()
        capture = cls(worker, layer_ids)
        setattr(worker, _ATTRIBUTE, capture)
        return capture

    @staticmethod
    def of(worker: Any) -> Capture:
        """The running capture of a worker, or of vLLM's wrapper around one."""
        capture: Capture | None = getattr(worker, _ATTRIBUTE, None)
        if capture is None:
            raise CaptureError("no capture was set up: call _setup_hidden_states_capture first")
        return capture

    def _stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self.layer_ids:
            self._worker.execute_model = self._execute_model

    def reset(self) -> None:
        """Drop states that were not taken."""
        self._labels = None
        self._untaken.clear()

    def take(self, with_states: bool) -> tuple[Labels, torch.Tensor | None] | None:
        """The last step's labels, once; with its states for a driver that can't map them."""
        if self._untaken:
            raise CaptureError("states of an earlier step were not taken")
        labels, self._labels = self._labels, None
        if labels is None:
            return None
        rows = sum(count for _, _, count in labels)
        return labels, self.states[:, :rows].clone() if with_states else None

    def take_all(self) -> list[tuple[Labels, torch.Tensor]]:
        """Labels and states of every step since the last reset or take."""
        self._keep()
        steps, self._untaken = self._untaken, []
        return steps

    def _keep(self) -> None:
        """Copy a step that nobody took, before its memory is used again."""
        if self._labels is not None:
            rows = sum(count for _, _, count in self._labels)
            self._untaken.append((self._labels, self.states[:, :rows].clone()))
            self._labels = None

    def _execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        rows = scheduler_output.total_num_scheduled_tokens
        if not rows:
            return self._execute_model(scheduler_output, *args, **kwargs)
        self._keep()
        self._rows = rows
        self._seen.clear()
        try:
            output = self._execute_model(scheduler_output, *args, **kwargs)
        finally:
            self._rows = 0
        missing = [i for n, i in enumerate(self.layer_ids) if n not in self._seen]
        if missing:
            raise CaptureError(f"decoder layers {missing} were not called as modules in this step")
        self._labels = self._label(scheduler_output)
        return output

    def _label(self, scheduler_output: Any) -> Labels:
        counts: dict[str, int] = scheduler_output.num_scheduled_tokens
        cached = scheduler_output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        starts.update(
            (r.req_id, r.num_computed_tokens) for r in scheduler_output.scheduled_new_reqs
        )
        order = [request_id for request_id in self._runner.input_batch.req_ids if request_id]
        if sorted(order) != sorted(counts):
            raise CaptureError(
                f"the batch holds {order}, the step was scheduled for {list(counts)}"
            )
        return [(request_id, starts[request_id], counts[request_id]) for request_id in order]

    def _recorder(self, index: int, layer: torch.nn.Module) -> Any:
        full = _defining_names(layer) & _HIDDEN_IS_FULL

        def record(module: torch.nn.Module, args: Any, output: Any) -> None:
            if not self._rows:
                return
            hidden, residual = output, None
            if isinstance(output, tuple):
                hidden, residual = output[0], None if full else output[1]
            self._write(index, hidden, residual)

        return record

    def _write(self, index: int, hidden: torch.Tensor, residual: torch.Tensor | None) -> None:
        """Write hidden + residual at once: fused norms of the next layer change both in place."""
        layer_id = self.layer_ids[index]
        if index in self._seen:
            raise CaptureError(f"decoder layer {layer_id} ran twice in one step")
        self._seen.add(index)
        if hidden.dim() == 3 and hidden.shape[0] == 1:  # Transformers-backend models
            hidden = hidden[0]
        into = self.states[index, : self._rows]
        # Padding, where there is any, lies behind the real rows.
        if hidden.dim() != 2 or hidden.shape[0] < self._rows or hidden.shape[1] != into.shape[1]:
            raise CaptureError(
                f"decoder layer {layer_id} put out {tuple(hidden.shape)} for {self._rows} tokens "
                f"of width {into.shape[1]}"
            )
        hidden = hidden[: self._rows]
        if residual is None:
            into.copy_(hidden)
        elif hidden.device == into.device and hidden.dtype == residual.dtype == into.dtype:
            torch.add(hidden, residual.view(-1, into.shape[1])[: self._rows], out=into)
        else:
            into.copy_(hidden + residual.view(-1, into.shape[1])[: self._rows])


def decoder_layers(model: torch.nn.Module, model_config: Any) -> torch.nn.ModuleList:
    """The language model's decoder layers: the outermost list as long as the config says.

    Raises:
        CaptureError: there is none, or two that could be meant.
    """
    count = model_config.hf_text_config.num_hidden_layers
    root = model
    if hasattr(model, "get_language_model"):
        try:
            root = model.get_language_model()
        except NotImplementedError:
            root = model
    level = [root]
    while level:
        found = [m for m in level if isinstance(m, torch.nn.ModuleList) and len(m) == count]
        if len(found) == 1:
            return found[0]
        if found:
            break
        level = [child for module in level for child in module.children()]
    raise CaptureError(
        f"{type(model).__name__} has {'several lists' if level else 'no list'} of {count} modules: "
        "which of them are its decoder layers is not known"
    )


def refuse_unreadable(layer: torch.nn.Module) -> None:
    """Raise CaptureError for a family whose layer outputs are not its states."""
    if names := _defining_names(layer) & _UNREADABLE:
        raise CaptureError(
            f"{type(layer).__name__} ({', '.join(names)}): the outputs of this family's layers are "
            "not its hidden states, and no other source is known for it yet"
        )


def _defining_names(layer: torch.nn.Module) -> frozenset[str]:
    return frozenset(type(layer).__module__.split("."))


def _is_here(layer: torch.nn.Module) -> bool:
    """False for the placeholders of layers that another pipeline stage runs."""
    return type(layer).__name__ != "PPMissingLayer"


def _is_first_of_its_stage() -> bool:
    from vllm.distributed import get_tp_group

    return bool(get_tp_group().rank_in_group == 0)


def take(worker: Any, with_states: bool) -> tuple[Labels, torch.Tensor | None] | None:
    """`Capture.take`, to be called by RPC."""
    return Capture.of(worker).take(with_states)


def take_all(worker: Any) -> list[tuple[Labels, torch.Tensor]]:
    """`Capture.take_all`, to be called by RPC."""
    return Capture.of(worker).take_all()


def echo(worker: Any, value: str) -> str:
    """Returns what it was sent: replies are still paired with their calls."""
    return value
