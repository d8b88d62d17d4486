"""``verify`` on a real engine: it passes what is right, and names what is made wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specvllm_compat.engine.families import decoder_layers
from specvllm_compat.verification import huggingface, runs
from specvllm_compat.verification.report import NOT_RUN, OK, WRONG, Check

COMMAND = "from specvllm_compat.cli import main; raise SystemExit(main())"
LAYER = 3  # whose states are made wrong
once_per_release = pytest.mark.skipif(
    importlib.metadata.version("speculators") < "0.4", reason="the same with every speculators"
)


def swapped(output: Any, _before: Any) -> Any:
    """The first two rows in each other's place."""
    parts = [part.clone() for part in output]
    for part in parts:
        if len(part) > 1:
            part[:2] = part[:2].flip(0)
    return tuple(parts)


def of_the_layer_before(_output: Any, before: Any) -> Any:
    return before


def show_the_capture(worker: Any, wrong: Any) -> None:
    """In a worker: what is captured of a layer is ``wrong``, the model itself computes on."""
    layers = decoder_layers(worker.model_runner.model, worker.vllm_config.model_config)
    seen: dict[str, Any] = {}

    def keep(_module: Any, _args: Any, output: Any) -> None:
        seen["before"] = tuple(part.clone() for part in output)

    def show(_module: Any, _args: Any, output: Any) -> Any:
        seen["right"] = output
        return wrong(output, seen["before"])

    def put_back(_module: Any, _args: Any, _output: Any) -> Any:
        return seen["right"]

    worker.made_wrong = [
        layers[LAYER - 1].register_forward_hook(keep, prepend=True),
        layers[LAYER].register_forward_hook(show, prepend=True),
        layers[LAYER].register_forward_hook(put_back),  # behind the capture's own
    ]


def put_right(worker: Any) -> None:
    for handle in worker.made_wrong:
        handle.remove()


@contextmanager
def captured(generator: Any, wrong: Any) -> Iterator[None]:
    generator.executor.collective_rpc(show_the_capture, args=(wrong,))
    try:
        yield
    finally:
        generator.executor.collective_rpc(put_right)


def verified(generator: Any, model: Path) -> dict[str, Check]:
    """All checks by name."""
    found = runs.check(generator)
    reference = huggingface.check(str(model), generator.vllm_config.model_config, found)
    return {check.name: check for check in [*found.checks, *reference]}


def wrong(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.verdict == WRONG}


def test_right_states_pass_every_check(generator: Any, llama: Path) -> None:
    checks = verified(generator, llama)
    assert {name: check.verdict for name, check in checks.items()} == dict.fromkeys(
        (
            "batched",
            "chunked",
            "shared prefix",
            "again",
            "auxiliary",
            "Hugging Face",
            "nearest layer",
        ),
        OK,
    ), checks
    assert checks["again"].error == checks["auxiliary"].error == 0.0
    assert torch.tensor([check.error for check in checks.values()]).isfinite().all()


@once_per_release
def test_rows_in_another_order_are_found_and_named(generator: Any, llama: Path) -> None:
    with captured(generator, swapped):
        checks = verified(generator, llama)
    # Alone, and again, and with another budget the same two rows change places.
    assert {"batched", "auxiliary", "Hugging Face"} <= wrong(checks), checks
    assert checks["again"].verdict == OK
    for name in ("batched", "auxiliary", "Hugging Face"):
        assert f"layer {LAYER}, row" in checks[name].remark, checks[name]
        assert "holds the state of row" in checks[name].remark, checks[name]
    assert wrong(verified(generator, llama)) == set()


@once_per_release
def test_the_layer_before_is_found_and_named(generator: Any, llama: Path) -> None:
    with captured(generator, of_the_layer_before):
        checks = verified(generator, llama)
    # States of another layer agree with themselves: only independent sources tell.
    assert wrong(checks) == {"auxiliary", "Hugging Face", "nearest layer"}, checks
    assert checks["nearest layer"].remark == f"layer {LAYER} holds the states of layer {LAYER - 1}"


@once_per_release
def test_a_call_that_fails_is_wrong_and_not_the_end(
    generator: Any, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = generator.generate

    def failing(prompts: Any) -> Any:
        if len(prompts) > 1:
            raise RuntimeError("rows are missing")
        return generate(prompts)

    monkeypatch.setattr(generator, "generate", failing)
    checks = verified(generator, llama)
    assert wrong(checks) == {"batched", "chunked", "shared prefix"}
    assert checks["batched"].remark == "RuntimeError: rows are missing"


@once_per_release
def test_a_row_too_few_is_wrong(
    generator: Any, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = generator.generate

    def cut(prompts: Any) -> Any:
        results = generate(prompts)
        results[-1]["hidden_states"][1] = results[-1]["hidden_states"][1][:-1]
        return results

    monkeypatch.setattr(generator, "generate", cut)
    checks = verified(generator, llama)
    assert checks["alone"].verdict == WRONG
    assert "has 1 tokens, its layers [1, 0, 1, 1, 1]" in checks["alone"].remark
    assert checks["Hugging Face"].verdict == NOT_RUN


@once_per_release
def test_a_model_that_does_not_fit_twice_is_not_compared(
    generator: Any, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(available=9)
    monkeypatch.setattr(huggingface.psutil, "virtual_memory", lambda: memory)
    found = runs.check(generator)
    [check] = huggingface.check(str(llama), generator.vllm_config.model_config, found)
    assert check.verdict == NOT_RUN
    assert "GB of memory" in check.remark


@pytest.mark.own_engine
def test_the_command_says_so_with_its_exit_status_and_as_json(small_llama: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", COMMAND, "verify", "--model", str(small_llama), "--json"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
    told = json.loads(finished.stdout)  # whatever vLLM and its workers print goes elsewhere
    assert {check["verdict"] for check in told["checks"]} == {OK}, told["checks"]
    assert len(told["checks"]) == 7
    assert told["versions"]["vllm"]
    assert "LlamaForCausalLM, bfloat16" in told["model"]["model"]
    assert told["model"]["layers"] == "[2, 2, 1, 3]"
