"""Worker side: where states come from, and which row belongs to which token of which request.

Forward hooks sit on the requested decoder layers; the model's own forward runs unchanged. A step's
rows are labelled from the model runner's own batch order. Warm-up and profiling forwards have no
requests and are not captured.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from specvllm_compat.engine.families import (
    CaptureError,
    decoder_layers,
    hidden_is_full,
    is_here,
    refuse_layer,
    summands,
)
from specvllm_compat.engine.sources import watch
from specvllm_compat.engine.transport import Segment, Shared, steps_at_a_time, writer

# Rows of a step in order: (request id, position of the first token, number of tokens)
Labels = list[tuple[str, int, int]]

_ATTRIBUTE = "specvllm_capture"


@dataclass(frozen=True)
class Step:
    """One step's rows in order: whose they are, and which tokens the model was given there."""

    labels: Labels
    token_ids: torch.Tensor  # int32 [rows]
    buffer: int  # of the segment, that holds the states
    states: torch.Tensor | None  # [layers, rows, hidden], for a driver that cannot map them


@dataclass(frozen=True)
class Reply:
    """What a worker has to say of a step it ran."""

    output: Any  # vLLM's own, of the one worker that speaks for all
    step: Step | None  # None where nothing was run, or another rank holds the same states
    error: str | None  # why states could not be captured or attributed, or are not sound


@dataclass(frozen=True)
class Description:
    """What one worker captures; ``layer_ids`` is empty where another rank holds the same states."""

    layer_ids: tuple[int, ...]
    segment: Segment | None


class Capture:
    """The states of the requested layers in one worker, step by step.

    States are [layers, rows, hidden] in the model's dtype, on the CPU. A step's states are valid
    until `steps_at_a_time` further steps have begun; `take` hands its labels over, `reset` drops
    what was not taken.
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
        self.layer_ids = tuple(i for i in sorted(set(layer_ids)) if is_here(layers[i]))
        if not _is_first_of_its_stage():  # every tensor-parallel rank computes the same states
            self.layer_ids = ()
        self._handles: Sequence[Any] = ()
        self._rows = 0  # of the running step; 0 outside of steps
        self._norms: dict[int, torch.Tensor] = {}
        self._error: str | None = None
        self._labels: Labels | None = None
        self._untaken: list[tuple[Labels, torch.Tensor]] = []
        self.description = Description(self.layer_ids, None)
        if not self.layer_ids:
            return
        refuse_layer(layers[self.layer_ids[0]], config.model_config.dtype)
        self._shared = Shared(
            steps_at_a_time(config.parallel_config.pipeline_parallel_size),
            len(self.layer_ids),
            config.scheduler_config.max_num_batched_tokens,
            config.model_config.get_hidden_size(),
            config.model_config.dtype,
        )
        self.description = Description(self.layer_ids, self._shared.segment)
        self._buffers = self._shared.segment.map()
        self._buffer = 0
        self._writer = writer(self._runner.device, self._buffers)
        self._handles = watch(self._runner.model, layers, self.layer_ids, self._recorder)
        self._execute_model = worker.execute_model
        worker.execute_model = self._execute

    @property
    def states(self) -> torch.Tensor:
        """The states of the last step, [layers, rows, hidden]; rows behind its own are older."""
        return self._buffers[self._buffer]

    @classmethod
    def start(cls, worker: Any, layer_ids: list[int]) -> Capture:
        """Capture these layers from now on, in place of what was captured before."""
        if (running := getattr(worker, _ATTRIBUTE, None)) is not None:
            running._stop()
        capture = cls(worker, layer_ids)
        setattr(worker, _ATTRIBUTE, capture)
        # RPCs go by name: vLLM 0.11.0 asks functions that it unpickled for one, in vain.
        for function in (execute, execute_and_sample, take_all, clean):
            setattr(worker, f"specvllm_{function.__name__}", MethodType(function, worker))
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
            self._writer.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around all of a step that the driver waits for: nothing is left of those before it."""
        self.reset()
        try:
            yield
        finally:
            if self.layer_ids:
                self._shared.bell.ring()

    def reset(self) -> None:
        """Drop states that were not taken."""
        self._labels = self._error = None
        self._untaken.clear()

    def take(self, with_states: bool) -> Step | None:
        """The last step, once; with its states for a driver that can't map them.

        None if no step was run, or another rank holds the same states.

        Raises:
            CaptureError: the step's states could not be captured or attributed, or are not sound.
        """
        self._raise_error()
        if self._labels is None:
            return None
        labels, self._labels = self._labels, None
        rows = sum(count for _, _, count in labels)
        token_ids = self._runner.input_ids.cpu[:rows].clone()
        states = self.states[:, :rows].clone() if with_states else None
        return Step(labels, token_ids, self._buffer, states)

    def take_all(self) -> list[tuple[Labels, torch.Tensor]]:
        """Labels and states of every step since the last reset or take."""
        self._raise_error()
        self._keep()
        steps, self._untaken = self._untaken, []
        return steps

    def _keep(self) -> None:
        """Copy a step that nobody took, before its memory is used again."""
        if self._labels is not None:
            rows = sum(count for _, _, count in self._labels)
            self._untaken.append((self._labels, self.states[:, :rows].clone()))
            self._labels = None

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self.reset()
            raise CaptureError(error)

    def _execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        rows = scheduler_output.total_num_scheduled_tokens
        if not rows:
            return self._execute_model(scheduler_output, *args, **kwargs)
        self._keep()
        self._rows = rows
        self._buffer = (self._buffer + 1) % len(self._buffers)
        self._norms.clear()
        try:
            output = self._execute_model(scheduler_output, *args, **kwargs)
        finally:
            self._rows = 0
        # Errors of ours wait until the states are asked for: vLLM's step has to be closed first.
        try:
            self._labels = self._label(scheduler_output)
            self._check(self._labels, rows)
        except CaptureError as error:
            self._error = self._error or str(error)
        return output

    def _check(self, labels: Labels, rows: int) -> None:
        """Every layer ran, every value is finite, and no layer is nothing but zeros."""
        for index, layer_id in enumerate(self.layer_ids):
            if index not in self._norms:
                raise CaptureError(f"decoder layer {layer_id} was not called as a module")
        norms = torch.stack([self._norms[i] for i in range(len(self.layer_ids))]).tolist()
        self._writer.finish()
        for layer_id, norm, states in zip(
            self.layer_ids, norms, self.states[:, :rows], strict=True
        ):
            if norm and math.isfinite(norm):
                continue
            finite = torch.isfinite(states).all(dim=1)  # squares can overflow, and underflow
            if finite.all() and (rows == 1 or states.any()):
                continue
            row = int(finite.logical_not().nonzero()[0]) if not finite.all() else 0
            what = "zero in all rows" if finite.all() else "not finite"
            for request_id, start, count in labels:
                if row < count:
                    where = f"request {request_id!r}, token {start + row}"
                    raise CaptureError(f"decoder layer {layer_id}: states are {what} ({where})")
                row -= count

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
        full = hidden_is_full(layer)

        def record(module: torch.nn.Module, args: Any, output: Any) -> None:
            if not self._rows:
                return
            try:
                self._write(index, *summands(output, full))
            # Raised when the states are asked for: other ranks wait for this one's forward to end.
            except Exception as error:  # noqa: BLE001
                known = isinstance(error, CaptureError)
                text = str(error) if known else f"decoder layer {self.layer_ids[index]}: {error!r}"
                self._error = self._error or text

        return record

    def _write(self, index: int, hidden: torch.Tensor, residual: torch.Tensor | None) -> None:
        """Write hidden + residual at once: fused norms of the next layer change both in place."""
        layer_id = self.layer_ids[index]
        if index in self._norms:
            raise CaptureError(f"decoder layer {layer_id} ran twice in one step")
        into = self.states[index, : self._rows]
        # Padding, where there is any, lies behind the real rows.
        if hidden.dim() != 2 or hidden.shape[0] < self._rows or hidden.shape[1] != into.shape[1]:
            raise CaptureError(
                f"decoder layer {layer_id} put out {tuple(hidden.shape)} for {self._rows} tokens "
                f"of width {into.shape[1]}"
            )
        if residual is not None:
            residual = residual[: self._rows]
        written = self._writer.write(into, hidden[: self._rows], residual)
        # In float16 the sum of squares would be infinite; converting bfloat16 would only cost time.
        wide = torch.float32 if written.dtype == torch.float16 else None
        self._norms[index] = torch.linalg.vector_norm(written, dtype=wide)


def _is_first_of_its_stage() -> bool:
    from vllm.distributed import get_tp_group

    return bool(get_tp_group().rank_in_group == 0)


# --- what the driver calls by RPC, with ``specvllm_`` before its name


def execute(worker: Any, scheduler_output: Any, output_rank: int, with_states: bool) -> Reply:
    """Run a step that is whole when ``execute_model`` returns."""
    with Capture.of(worker).step():
        return _reply(worker, worker.execute_model(scheduler_output), output_rank, with_states)


def execute_and_sample(
    worker: Any, scheduler_output: Any, output_rank: int, with_states: bool
) -> Reply:
    """Run a step that ``sample_tokens`` has to close."""
    with Capture.of(worker).step():
        output = worker.execute_model(scheduler_output)
        if output is None:
            output = worker.sample_tokens(None)
        return _reply(worker, output, output_rank, with_states)


def _reply(worker: Any, output: Any, output_rank: int, with_states: bool) -> Reply:
    output = output if worker.rank == output_rank else None
    try:
        return Reply(output, Capture.of(worker).take(with_states), None)
    except CaptureError as error:
        return Reply(output, None, str(error))


def take_all(worker: Any) -> list[tuple[Labels, torch.Tensor]]:
    """`Capture.take_all`."""
    return Capture.of(worker).take_all()


def clean(worker: Any, nonce: str) -> str:
    """After a failed call: zero the KV cache, where a NaN would outlive its request.

    A masked position still counts as 0 times its value, and 0 times NaN is NaN. Returns what it was
    sent, which shows that replies are still paired with their calls.
    """
    pending = list(worker.model_runner.kv_caches)
    while pending:
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            item.zero_()
        else:  # layers of recurrent state keep several tensors
            pending.extend(item)
    return nonce
