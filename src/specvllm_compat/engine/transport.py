"""Carry states from a worker to the driver through memory that both have mapped.

A worker writes each step's states once, the driver reads them without a copy; only row labels
cross the RPC. The memory has no name in any file system, so no crash leaves anything behind, and a
small ``/dev/shm`` does not matter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil  # vLLM brings it
import torch

log = logging.getLogger("specvllm_compat")

_PATIENCE = 30.0  # seconds


def steps_at_a_time(pipeline_stages: int) -> int:
    """That are in memory: every stage computes one while the one before them is read."""
    return pipeline_stages + 1


@dataclass(frozen=True)
class Segment:
    """Memory for ``states [steps, layers, rows, hidden]``; small, so it can cross the RPC."""

    path: str
    name: str
    bell: str
    shape: tuple[int, int, int, int]
    dtype: torch.dtype

    def map(self) -> torch.Tensor:
        """The states: the same memory in every process that maps it.

        Raises:
            FileNotFoundError: it belongs to a process of another host.
        """
        if self.name not in os.readlink(self.path):
            raise FileNotFoundError(self.path)
        size = torch.Size(self.shape).numel()
        flat = torch.from_file(self.path, shared=True, size=size, dtype=self.dtype)
        return flat.view(self.shape)


class Shared:
    """A worker's segment and its bell, whose descriptors end with it.

    To be kept until the driver has mapped the one and opened the other.

    Raises:
        MemoryError: there is not that much; the text says how much is needed.
    """

    def __init__(self, steps: int, layers: int, rows: int, hidden: int, dtype: torch.dtype) -> None:
        name = f"specvllm-{uuid.uuid4().hex}"
        shape = (steps, layers, rows, hidden)
        size = torch.Size(shape).numel() * dtype.itemsize
        available = psutil.virtual_memory().available
        if size > available:  # the system would kill a process instead of saying so
            raise MemoryError(
                f"{size >> 20} MiB are needed to hand states over ({steps} steps x {layers} "
                f"layers x {rows} tokens x {hidden} values), and this host has {available >> 20}. "
                "Lower max_num_batched_tokens."
            )
        descriptor = os.memfd_create(name)
        self._close = weakref.finalize(self, os.close, descriptor)
        # Reserve its pages now: later, whoever touches one that is not there is killed.
        os.posix_fallocate(descriptor, 0, size)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        bell, self.bell, self._hearing = Bell.pair()
        self.segment = Segment(path, name, bell, shape, dtype)


class Bell:
    """A worker rings at the end of each step, so that the driver can sleep until then.

    vLLM's own wait for a reply keeps a core busy; on a CPU that is one of those that compute. Only
    a hint: a driver that hears nothing waits as vLLM does.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ringing = select.poll()  # unlike select, also where many files are open
        self._ringing.register(descriptor, select.POLLIN)
        self._heard = 0
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def pair(cls) -> tuple[str, Bell, Bell]:
        """Where a driver on this host hears it, the bell to ring, and what keeps that place."""
        hearing, ringing = os.pipe()
        os.set_blocking(ringing, False)
        return f"/proc/{os.getpid()}/fd/{hearing}", cls(ringing), cls(hearing)

    @classmethod
    def at(cls, path: str) -> Bell:
        """The driver's end; it also hears that the worker died."""
        return cls(os.open(path, os.O_RDONLY))

    def ring(self) -> None:
        """One step has ended."""
        with contextlib.suppress(BlockingIOError):  # nobody listens
            os.write(self._descriptor, b"\0")

    def wait(self, steps: int) -> None:
        """Return when that many steps have ended, since the beginning; or when told nothing."""
        while self._heard < steps:
            if not self._ringing.poll(_PATIENCE * 1e3):
                return
            heard = os.read(self._descriptor, 4096)
            if not heard:
                return
            self._heard += len(heard)


class Writer:
    """Write layers' states into mapped memory; here the layers compute on the CPU."""

    def write(
        self, into: torch.Tensor, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """Write ``hidden + residual`` [rows, hidden]; returns what was written, where it is now.

        Only for what follows on the same stream: `finish` tells when ``into`` may be read.
        """
        if residual is None:
            return into.copy_(hidden)
        return torch.add(hidden, residual, out=into)

    def finish(self) -> None:
        """Return when everything written has arrived."""

    def close(self) -> None:
        """Nothing is written any more, and the memory may be unmapped."""


class DeviceWriter(Writer):
    """The same from an accelerator: copies run beside the layers that come after.

    ``device_module`` is ``torch.cuda`` or its like: streams are taken from there.
    """

    def __init__(self, device_module: Any, unpin: Callable[[], Any] | None = None) -> None:
        self._module = device_module
        self._stream = device_module.Stream()
        self._unpin = unpin

    def write(
        self, into: torch.Tensor, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        # The layers after this one change both in place: the copy needs a tensor of its own.
        states = hidden.clone() if residual is None else hidden + residual
        states = states.to(into.dtype)
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            into.copy_(states, non_blocking=True)
        states.record_stream(self._stream)  # its memory is not used again before the copy
        return states

    def finish(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        self.finish()
        if self._unpin is not None:
            self._unpin()


def writer(device: torch.device, states: torch.Tensor) -> Writer:
    """The writer for layers on ``device`` into ``states``, which is pinned where that is known."""
    if device.type == "cpu":
        return Writer()
    unpin = None
    if device.type == "cuda":  # ROCm too; elsewhere copies wait for the device, and are right
        runtime, at = torch.cuda.cudart(), states.data_ptr()
        status = runtime.cudaHostRegister(at, states.numel() * states.element_size(), 0)
        if int(status) == 0:
            unpin = partial(runtime.cudaHostUnregister, at)
        else:
            log.warning("states cannot be pinned (CUDA error %d): copies wait", int(status))
            with contextlib.suppress(RuntimeError):  # the next kernel takes the error for its own
                torch.empty(1, device=device).zero_()
    return DeviceWriter(torch.get_device_module(device), unpin)
