"""Faults of speculators' own generate(), shown on the engine that also shows ours to be right."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import tiny
from conftest import ENGINE_ARGS, LAYER_IDS
from oracle import check_results
from speculators.data_generation import custom_worker
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator
from vllm.v1.request import RequestStatus

CHUNK = ENGINE_ARGS["max_num_batched_tokens"]
BY_REQUEST = importlib.metadata.version("speculators") >= "0.4"
only_04 = pytest.mark.skipif(not BY_REQUEST, reason="speculators 0.3 fails otherwise")
only_03 = pytest.mark.skipif(BY_REQUEST, reason="speculators 0.4 repaired this")


def empty(generator: Any) -> None:
    """Drop every request from the scheduler and the workers."""
    scheduler = generator.scheduler
    scheduler.finish_requests(list(scheduler.requests), RequestStatus.FINISHED_ABORTED)
    while scheduler.has_requests():
        step = scheduler.schedule()
        scheduler.update_from_output(step, generator.executor.execute_model(step))
    generator.executor.collective_rpc("_reset_capture")


def upstream(generator: Any, prompts: list[list[int]]) -> Any:
    """What speculators' own method returns, and a scheduler that is empty again."""
    own = vars(VllmHiddenStatesGenerator)["generate"].__wrapped__
    try:
        return own(generator, prompts)
    finally:
        empty(generator)


def ours(generator: Any, prompts: list[list[int]], model: Path) -> None:
    check_results(generator.generate(prompts), prompts, model, LAYER_IDS)


@only_04
def test_more_than_ten_prompts_come_back_in_another_order_without_us(
    generator: Any, llama: Path
) -> None:
    prompts = [[n, n + 1, n + 2] for n in range(12)]
    theirs = [result["input_ids"].tolist() for result in upstream(generator, prompts)]
    assert sorted(theirs) == sorted(prompts)
    assert theirs != prompts
    ours(generator, prompts, llama)


@only_04
def test_repeated_and_unsorted_layers_come_back_as_others_without_us(
    generator: Any, llama: Path
) -> None:
    [result] = upstream(generator, [[1, 2, 3]])
    assert len(result["hidden_states"]) == len(set(LAYER_IDS)) < len(LAYER_IDS)
    ours(generator, [[1, 2, 3]], llama)


@only_04
def test_more_prompts_than_the_scheduler_holds_at_once_fail_without_us(
    generator: Any, llama: Path
) -> None:
    count = generator.vllm_config.scheduler_config.max_num_seqs + 1
    prompts = [[n % 500, 1] for n in range(count)]
    with pytest.raises(RuntimeError, match="not found in captured states"):
        upstream(generator, prompts)
    ours(generator, prompts, llama)


@only_03
def test_a_prompt_longer_than_a_step_is_cut_short_without_us(generator: Any, llama: Path) -> None:
    prompts = [list(range(CHUNK + 50))]
    [result] = upstream(generator, prompts)
    assert len(result["input_ids"]) == CHUNK + 50
    assert {len(states) for states in result["hidden_states"]} == {CHUNK}
    ours(generator, prompts, llama)


def forwards_replaced(worker: Any) -> list[str]:
    """In a worker: the modules whose forward is not their class's own."""
    return [name for name, m in worker.model_runner.model.named_modules() if "forward" in vars(m)]


def set_up_as_upstream(worker: Any) -> list[str]:
    """In a worker: what speculators' own method replaces; the model is as before afterwards."""
    own = vars(custom_worker.HiddenStatesWorkerExtension)["_setup_hidden_states_capture"]
    own.__wrapped__(worker, [0])
    replaced = forwards_replaced(worker)
    for name in replaced:
        del worker.model_runner.model.get_submodule(name).forward
    return replaced


def test_the_models_own_forward_is_replaced_without_us(generator: Any, llama: Path) -> None:
    """What a model's forward does besides calling its layers is lost: deepstack inputs, scales."""
    rpc = generator.executor.collective_rpc
    assert rpc(forwards_replaced) == [[]]
    assert rpc(set_up_as_upstream) == [["model"]]
    ours(generator, [[1, 2, 3]], llama)


def test_a_failed_call_breaks_the_next_one_without_us(generator: Any, llama: Path) -> None:
    schedule = generator.scheduler.schedule

    def failing(*args: Any, **kwargs: Any) -> Any:
        del generator.scheduler.schedule
        raise MemoryError("the device is full")

    own = vars(VllmHiddenStatesGenerator)["generate"].__wrapped__
    generator.scheduler.schedule = failing
    with pytest.raises(MemoryError):
        own(generator, [[1, 2, 3]])
    assert generator.scheduler.has_requests(), "its requests are still in the scheduler"
    empty(generator)

    generator.scheduler.schedule = failing
    with pytest.raises(MemoryError):
        generator.generate([[1, 2, 3]])
    assert not generator.scheduler.has_requests()
    assert generator.scheduler.schedule == schedule
    ours(generator, tiny.prompts(5, 100, seed=8), llama)
