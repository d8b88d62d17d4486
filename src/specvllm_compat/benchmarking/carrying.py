"""States from one process to another, as the engine carries them, with nothing else to do."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
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


def carry(step: Step, steps: int, repetitions: int, device: str = "cpu") -> list[float]:
    """Seconds for ``steps`` steps of states, from tensors of a worker to tensors of the driver.

    The worker is a process with the engine's own writer; this one sorts rows into prompts as the
    engine does. Both work at a time, on different steps.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=_write, args=(there, step, device), daemon=True)
    worker.start()
    there.close()
    segment = here.recv()
    mapped = segment.map()
    seconds = []
    for repetition in range(repetitions + 1):
        started = time.perf_counter()
        for number in range(steps + 1):
            if number < steps:
                here.send(number)
            if number:
                _sort(mapped[here.recv()], step)
        if repetition:  # the first fills memory
            seconds.append(time.perf_counter() - started)
    here.send(None)
    worker.join()
    return seconds


def _sort(states: Any, step: Step) -> None:
    from types import SimpleNamespace

    from specvllm_compat.engine.run import _Rows

    for start in range(0, step.rows, step.length):
        request = SimpleNamespace(request_id="", prompt_token_ids=[0] * step.length)
        rows = _Rows(request, list(range(step.layers)))
        for layer_id in range(step.layers):
            rows.add(layer_id, 0, states[layer_id, start : start + step.length])


def _write(connection: Any, step: Step, device: str) -> None:
    """In the worker: write steps as they are asked for, until None is."""
    import torch
    from specvllm_compat.engine.transport import BUFFERS, create, writer

    dtype = getattr(torch, step.dtype)
    segment, _ = create(step.layers, step.rows, step.hidden, dtype)
    buffers = segment.map()
    target = writer(torch.device(device), buffers)
    hidden = torch.randn(step.rows, step.hidden).to(dtype).to(device)
    connection.send(segment)
    while (number := connection.recv()) is not None:
        for layer in buffers[number % BUFFERS]:
            target.write(layer, hidden, None)
        target.finish()
        connection.send(number % BUFFERS)
