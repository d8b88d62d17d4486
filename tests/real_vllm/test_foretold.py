"""``check`` foretells, from source alone, what ``status`` and the run without us show."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
import specvllm_compat
from specvllm_compat.contract import SourceLens
from specvllm_compat.preflight.call_sites import uses
from specvllm_compat.preflight.misfits import MISFIT, judge
from test_without_us import NO_GPU, TRANSFORMERS_5, TRANSFORMERS_5_24, expected

COMMAND = "from specvllm_compat.cli import main; raise SystemExit(main(['check', '--json']))"


@pytest.fixture(scope="module")
def foretold() -> dict[str, Any]:
    """What the check says of this environment, in a process of its own."""
    variables = {"SPECVLLM_COMPAT": "off"}
    finished = subprocess.run(
        [sys.executable, "-c", COMMAND],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    report: dict[str, Any] = json.loads(finished.stdout)
    return report


def test_check_agrees_with_status_after_the_import(foretold: dict[str, Any]) -> None:
    for module in ("vllm_hidden_states_generator", "custom_worker"):
        importlib.import_module(f"speculators.data_generation.{module}")
    found = {shim: (verdict, era) for shim, verdict, era in specvllm_compat.status()}
    said = {row["shim"]: (row["verdict"], row["era"]) for row in foretold["shims"]}
    waiting = {name for name, (verdict, _) in found.items() if verdict == "WAITING"}
    assert waiting <= {"hashing_module"}  # speculators 0.3 has no use for vllm.utils
    assert said == {name: said[name] if name in waiting else found[name] for name in said}


def test_check_foretells_the_first_error_without_us(foretold: dict[str, Any]) -> None:
    failure = expected()
    if failure in NO_GPU.values():
        return  # on a CPU the size of the KV cache fails first, and that is no mismatch
    kind, _, message = failure
    first = foretold["without_us"][0]
    assert first.startswith(kind)
    assert message in first
    assert failure not in (TRANSFORMERS_5, TRANSFORMERS_5_24) or len(foretold["without_us"]) > 1


def test_a_check_takes_no_longer_than_a_breath() -> None:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, check=True)
    assert time.perf_counter() - started < 3  # about 0.3 on an idle machine


def test_vllm_is_not_accused_of_misusing_itself() -> None:
    """vLLM's own modules are scripts that fit this vLLM: each misfit found would be our error."""
    lens = SourceLens()
    files = lens.files("vllm")
    assert files is not None
    accused, judged = [], 0
    for path in files.paths("v1")[::9] + files.paths("entrypoints")[::9]:
        module = f"vllm.{path.removesuffix('.py').replace('/', '.')}"
        for use in uses(files.text(path), module, lens, ("vllm",)):
            judgement = judge(use, lens)
            judged += 1
            missing = judgement.error.startswith("ModuleNotFoundError")  # built for GPUs only
            if judgement.outcome == MISFIT and not use.guarded and not missing:
                accused.append(f"{path}:{use.line} {judgement.error}")
    assert accused == []
    assert judged > 500
