"""The negative control: switched off, upstream's generator fails on the installed vLLM.

Only the first failure shows. On a machine without a GPU that is the size of the KV cache at the
latest (upstream asks CUDA for the free memory), with transformers 5 it is upstream's own import.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import vllm
from conftest import HERE
from packaging.version import Version

# type, upstream's function, what the message contains
Failure = tuple[str, str, str]

TRANSFORMERS_5: Failure = ("PydanticUndefinedAnnotation", "reload_schema", "torch")
TRANSFORMERS_5_24: Failure = ("ModuleNotFoundError", "<module>", "modeling_attn_mask_utils")
NO_HASHING_MODULE: Failure = ("ModuleNotFoundError", "<module>", "vllm.utils.hashing")
SCHEDULER_CONFIG: Failure = ("ValidationError", "_create_vllm_config", "is_encoder_decoder")
NO_GPU = {
    "0.3": ("(RuntimeError|AssertionError)", "__init__", "NVIDIA|CUDA"),
    "0.4": (
        "(RuntimeError|AssertionError)",
        "(mem_get_info|__init__)",
        "NVIDIA|CUDA|num_gpu_blocks",
    ),
}


def expected() -> Failure:
    """The first failure of this speculators with this vLLM and this transformers."""
    transformers = Version(importlib.metadata.version("transformers"))
    release = Version(Version(vllm.__version__).base_version)
    if transformers >= Version("5.24"):
        return TRANSFORMERS_5_24
    if transformers >= Version("5"):
        return TRANSFORMERS_5
    minor = importlib.metadata.version("speculators")[:3]
    if minor == "0.4" and release < Version("0.11.1"):
        return NO_HASHING_MODULE
    if minor == "0.3" and release >= Version("0.12"):
        return SCHEDULER_CONFIG
    return NO_GPU[minor]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the failures listed are those on a CPU")
def test_switched_off_upstreams_generator_fails(small_llama: Path, tmp_path: Path) -> None:
    report = tmp_path / "failure.json"
    finished = subprocess.run(
        [sys.executable, str(HERE / "upstream_alone.py"), str(small_llama), str(report)],
        env=os.environ | {"SPECVLLM_COMPAT": "off", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), finished.stderr[-4000:]
    failure = json.loads(report.read_text())
    kind, where, message = expected()
    for pattern, found in ((kind, "type"), (where, "where"), (message, "message")):
        assert re.search(pattern, failure[found]), failure
