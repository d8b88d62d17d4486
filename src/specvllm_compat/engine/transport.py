"""Carry states from a worker to the driver through memory that both have mapped.

A worker writes each step's states once, the driver reads them without a copy; only row labels
cross the RPC. The memory has no name in any file system, so no crash leaves anything behind, and a
small ``/dev/shm`` does not matter.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass
from typing import Any

import psutil  # vLLM brings it
import torch

log = logging.getLogger("specvllm_compat")

BUFFERS = 2
"""Steps that are in memory at a time: one is written while the one before it is read."""


@dataclass(frozen=True)
class Segment:
    """Memory for ``states [buffers, layers, rows, hidden]``; small, so it can cross the RPC."""

    path: str
    name: str
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


def create(layers: int, rows: int, hidden: int, dtype: torch.dtype) -> tuple[Segment, int]:
    """A segment, and its file descriptor: to be kept open until the driver has mapped it.

    Its pages are reserved now: later, whoever touches a page that is not there is killed.

    Raises:
        MemoryError: there is not that much; the text says how much is needed.
    """
    name = f"specvllm-{uuid.uuid4().hex}"
    shape = (BUFFERS, layers, rows, hidden)
    size = torch.Size(shape).numel() * dtype.itemsize
    available = psutil.virtual_memory().available
    if size > available:  # the system would kill a process instead of saying so
        raise MemoryError(
            f"{size >> 20} MiB are needed to hand states over ({BUFFERS} steps x {layers} layers x "
            f"{rows} tokens x {hidden} values), and this host has {available >> 20}. Lower "
            "max_num_batched_tokens."
        )
    descriptor = os.memfd_create(name)
    os.posix_fallocate(descriptor, 0, size)
    return Segment(f"/proc/{os.getpid()}/fd/{descriptor}", name, shape, dtype), descriptor


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


class DeviceWriter(Writer):
    """The same from an accelerator: copies run beside the layers that come after.

    ``device_module`` is ``torch.cuda`` or its like: streams are taken from there.
    """

    def __init__(self, device_module: Any) -> None:
        self._module = device_module
        self._stream = device_module.Stream()

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


def writer(device: torch.device, states: torch.Tensor) -> Writer:
    """The writer for layers on ``device`` into ``states``, which is pinned where that is known."""
    if device.type == "cpu":
        return Writer()
    if device.type == "cuda":  # ROCm too; elsewhere copies wait for the device, and are right
        status = torch.cuda.cudart().cudaHostRegister(
            states.data_ptr(), states.numel() * states.element_size(), 0
        )
        if int(status) != 0:
            log.warning("states cannot be pinned (status %s): copies wait for the device", status)
    return DeviceWriter(torch.get_device_module(device))
