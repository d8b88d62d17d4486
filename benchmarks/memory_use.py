"""Resident memory of this process, and of its workers together, in bytes. Needs Linux."""

from __future__ import annotations

import os
from pathlib import Path

_RESET_PEAK = "5"


def workers(process: int) -> list[int]:
    """Every process below this one."""
    found = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            found += [int(child), *workers(int(child))]
    return found


def _read(field: str) -> dict[str, int]:
    driver = os.getpid()
    return {
        "driver": _field(driver, field),
        "workers": sum(_field(process, field) for process in workers(driver)),
    }


def _field(process: int, name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has ended, and was not waited for, has none


def now() -> dict[str, int]:
    return _read("VmRSS")


def peak() -> dict[str, int]:
    """Since the last `reset`."""
    return _read("VmHWM")


def reset() -> dict[str, int]:
    """Start anew; returns what is used now."""
    for process in [os.getpid(), *workers(os.getpid())]:
        Path(f"/proc/{process}/clear_refs").write_text(_RESET_PEAK)
    return now()
