"""States from one process to another, as the engine carries them, with nothing else to do."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any


@dataclass(frozen=True)
class Step:
    """What a step hands over: ``rows`` of every layer, that belong to prompts of one length."""

    layers: int
    rows: int
    hidden: int
    dtype: str
    length: int

    @property
    def bytes(self) -> int:
        """Of all its states."""
        import torch

        each: int = getattr(torch, self.dtype).itemsize
        return self.layers * self.rows * self.hidden * each


class Carrier:
    """A worker with the engine's own writer, and a driver that sorts rows as the engine does.

    Both work at a time, on different steps. A context manager: the worker ends with it.
    """

    def __init__(self, step: Step, device: str = "cpu") -> None:
        from specvllm_compat.engine.memory import Memory

        self._step = step
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._worker = context.Process(target=_write, args=(there, step, device), daemon=True)
        self._worker.start()
        there.close()
        self._states = self._connection.recv().map()
        self._memory = Memory(self._states.nbytes)
        self.run(2)  # memory is taken into use

    def run(self, steps: int) -> float:
        """Seconds for so many steps, from tensors of the worker to tensors of the driver."""
        started = time.perf_counter()
        for number in range(steps + 1):
            if number < steps:
                self._connection.send(number)
            if number:
                self._sort(self._states[self._connection.recv()])
        return time.perf_counter() - started

    def __enter__(self) -> Carrier:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.send(None)
        self._worker.join()

    def _sort(self, states: Any) -> None:
        from specvllm_compat.engine.run import Rows

        step = self._step
        for start in range(0, step.rows, step.length):
            prompt = [0] * min(step.length, step.rows - start)
            request = SimpleNamespace(request_id="", prompt_token_ids=prompt)
            rows = Rows(request, list(range(step.layers)), self._memory)
            for layer_id in range(step.layers):
                rows.add(layer_id, 0, states[layer_id, start : start + len(prompt)])


def _write(connection: Any, step: Step, device: str) -> None:
    """In the worker: write steps as they are asked for, until None is."""
    import torch
    from specvllm_compat.engine.transport import Shared, steps_at_a_time, writer

    dtype = getattr(torch, step.dtype)
    shared = Shared(steps_at_a_time(1), step.layers, step.rows, step.hidden, dtype)
    buffers = shared.segment.map()
    target = writer(torch.device(device), buffers)
    hidden = torch.randn(step.rows, step.hidden).to(dtype).to(device)
    connection.send(shared.segment)
    while (number := connection.recv()) is not None:
        buffer = number % len(buffers)
        for layer in buffers[buffer]:
            target.write(layer, hidden, None)
        target.finish()
        connection.send(buffer)
