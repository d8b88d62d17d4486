"""Requests in, rows out that are known to be theirs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from specvllm_compat.engine.assembly import Engine
from specvllm_compat.engine.families import CaptureError


class _Rows:
    """One request's states as they come in: chunk by chunk, again from the start if preempted."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = torch.tensor(token_ids, dtype=torch.int32)
        self.tokens = len(token_ids)
        self.layers: dict[int, torch.Tensor] = {}
        self._filled: dict[int, int] = {}

    def check(self, request_id: str, start: int, token_ids: torch.Tensor) -> None:
        """Refuse rows of other tokens than the prompt's, of which the prompt has ``tokens``."""
        expected = self.token_ids[start : start + len(token_ids)]
        if not torch.equal(token_ids[: len(expected)], expected):
            raise CaptureError(f"rows of {request_id!r} from {start} on are of other tokens")

    def add(self, layer_id: int, start: int, rows: torch.Tensor) -> None:
        """Copy rows [n, hidden] to where they belong; rows past the prompt are not asked for."""
        filled = self._filled.get(layer_id, 0)
        if start > filled:
            raise CaptureError(f"layer {layer_id}: rows {filled} to {start} are missing")
        end = min(start + len(rows), self.tokens)
        if layer_id not in self.layers:
            self.layers[layer_id] = rows.new_empty(self.tokens, rows.shape[1])
        if end > start:
            self.layers[layer_id][start:end].copy_(rows[: end - start])
            self._filled[layer_id] = end

    def complete(self, layer_ids: list[int]) -> dict[int, torch.Tensor]:
        short = {i: self._filled.get(i, 0) for i in layer_ids if self._filled.get(i) != self.tokens}
        if short:
            raise CaptureError(f"{self.tokens} tokens, but rows per layer: {short}")
        return self.layers


def run(engine: Engine, requests: list[Any]) -> list[dict[int, torch.Tensor]]:
    """Prefill every request; per request ``{layer id: states [tokens, hidden]}``, on the CPU.

    The requests are vLLM's, with ``max_tokens=1``: sampling one token is how a prefill ends.

    Raises:
        CaptureError: a row is missing or belongs to nobody known. Nothing is returned then.
        RuntimeError: the engine failed. It is cleaned up, or says at the next call that it is not.
    """
    engine.check_usable()
    rows = {request.request_id: _Rows(request.prompt_token_ids) for request in requests}
    try:
        for request in requests:
            engine.scheduler.add_request(request)
        with _interrupts_between_steps() as raise_if_interrupted:
            _run_until_empty(engine, rows, raise_if_interrupted)
        layer_ids = engine.captured_layer_ids
        return [rows[request.request_id].complete(layer_ids) for request in requests]
    except BaseException as error:
        engine.recover(list(rows), error)
        raise


@contextlib.contextmanager
def _interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back until the running step has ended, so that the engine stays usable.

    Yields what raises it between steps. A second Ctrl-C is not held back.
    """
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    def raise_if_held() -> None:
        if held:
            raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield raise_if_held
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield raise_if_held
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_until_empty(
    engine: Engine, rows: dict[str, _Rows], raise_if_interrupted: Callable[[], None]
) -> None:
    """Step until nothing is left, the empty step included that tells workers what has ended."""
    scheduler, executor = engine.scheduler, engine.executor
    idle = False
    while scheduler.has_requests():
        step = scheduler.schedule()
        output = executor.execute_model(step)
        if step.total_num_scheduled_tokens:
            _sort(engine, rows)
        elif idle and scheduler.has_unfinished_requests():
            raise RuntimeError("vLLM schedules nothing more: is the KV cache too small?")
        idle = not step.total_num_scheduled_tokens
        scheduler.update_from_output(step, output)
        raise_if_interrupted()


def _sort(engine: Engine, rows: dict[str, _Rows]) -> None:
    for step, layers in engine.collect():
        offset = 0
        for request_id, start, count in step.labels:
            if request_id not in rows:
                raise CaptureError(f"rows of {request_id!r}, which this call did not ask for")
            here = slice(offset, offset + count)
            rows[request_id].check(request_id, start, step.token_ids[here])
            for layer_id, states in layers.items():
                rows[request_id].add(layer_id, start, states[here])
            offset += count
