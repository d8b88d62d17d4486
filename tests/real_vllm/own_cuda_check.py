"""How often does an import of speculators ask CUDA itself for its devices? Argument: report file.

torch is made to believe that it was built for CUDA; the answers are those of a machine without.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import specvllm_compat  # noqa: F401
import torch

asked: list[bool] = []


def count_devices() -> int:
    """In place of CUDA's own, after which no forked process can use CUDA."""
    asked.append(True)
    return 0


torch._C._cuda_getDeviceCount = count_devices
torch._C._cuda_getCurrentRawStream = None
torch.cuda._is_compiled = lambda: True
torch.cuda._device_count_nvml = lambda: 0

import speculators  # noqa: E402, F401

Path(sys.argv[1]).write_text(json.dumps({"asked": len(asked), "prompts": 0, "largest_error": 0.0}))
