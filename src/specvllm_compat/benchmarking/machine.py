"""The machine that numbers were measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def describe() -> dict[str, str]:
    """Processor, cores, memory, accelerator."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    accelerator = "none"
    if torch.accelerator.is_available():
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        accelerator = f"{module.device_count()} x {module.get_device_name(0)}"
    vectors = torch.backends.cpu.get_cpu_capability()
    return {
        "processor": f"{_processor()} ({platform.machine()}, {vectors})",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "accelerator": accelerator,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def copying(size: int, repetitions: int = 5) -> list[float]:
    """Seconds that one thread takes to copy ``size`` bytes, the memory being there already."""
    import torch

    threads = torch.get_num_threads()
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(repetitions):
            started = time.perf_counter()
            target.copy_(source)
            seconds.append(time.perf_counter() - started)
        return seconds
    finally:
        torch.set_num_threads(threads)
