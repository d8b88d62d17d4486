"""Faults of speculators' own generate(), shown on the engine that also shows ours to be right."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
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


def remembered(worker: Any) -> set[str]:
    """In a worker: the requests it still keeps."""
    return set(worker.model_runner.requests)


def test_workers_keep_the_requests_of_earlier_calls_without_us(generator: Any, llama: Path) -> None:
    own = vars(VllmHiddenStatesGenerator)["generate"].__wrapped__
    [before] = generator.executor.collective_rpc(remembered)  # 0.3.0 leaves some for ever
    own(generator, [[1, 2, 3]])
    [kept] = generator.executor.collective_rpc(remembered)
    assert len(kept - before) == 1
    empty(generator)
    ours(generator, [[1, 2, 3]], llama)
    assert generator.executor.collective_rpc(remembered)[0] <= kept


def extension(**attributes: Any) -> Any:
    """A worker as speculators' own methods see it, with rows 0, 1, 2, … of one layer."""
    rows = torch.arange(attributes.pop("rows")).float()[:, None]
    position = SimpleNamespace(req_id_to_index={"a": 0, "b": 1})
    defaults: dict[str, Any] = {"_captured_states": [[rows]], "_request_metadata": []}
    runner = SimpleNamespace(input_batch=position)
    return SimpleNamespace(**{**defaults, "model_runner": runner, **attributes})


def their_worker(name: str, *args: Any) -> Any:
    """Call speculators' own method of its worker extension."""
    method = vars(custom_worker.HiddenStatesWorkerExtension)[name]
    return getattr(method, "__wrapped__", method)(*args)


@only_04
def test_a_sampled_token_shifts_the_rows_of_later_requests_without_us() -> None:
    # Step 1: three tokens of a; step 2: one that a sampled, and two of b.
    worker = extension(rows=6, _request_metadata=[[("a", 3)], [("b", 2)]])
    states = their_worker("_get_captured_states", worker)
    assert states["a"][0].flatten().tolist() == [0, 1, 2]
    assert states["b"][0].flatten().tolist() == [3, 4], "b's are 4 and 5"


@only_04
def test_a_step_without_prompts_is_taken_for_the_one_before_it_without_us() -> None:
    worker = extension(rows=3, _captured_states=None, _current_request_metadata={"a": 3})
    for rows in (torch.zeros(3, 1), torch.full((1, 1), 99.0)):  # the second: a sampled token
        their_worker("_store_captured_states", worker, [rows])
    states = their_worker("_get_captured_states", worker)
    assert states["a"][0].flatten().tolist() == [0, 0, 0, 99]


@only_04
def test_missing_rows_are_no_error_without_us() -> None:
    worker = extension(rows=4, _request_metadata=[[("a", 3), ("b", 2)]])
    assert len(their_worker("_get_captured_states", worker)["b"][0]) == 1


def forwards_replaced(worker: Any) -> list[str]:
    """In a worker: the modules whose forward is not their class's own."""
    return [name for name, m in worker.model_runner.model.named_modules() if "forward" in vars(m)]


def set_up_as_upstream(worker: Any) -> list[str]:
    """In a worker: what speculators' own method replaces; the model is as before afterwards."""
    their_worker("_setup_hidden_states_capture", worker, [0])
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
