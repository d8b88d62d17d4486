"""What goes wrong while states are captured is refused by name, and the engine is used again."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import LAYER_IDS
from oracle import check_results

GOOD = [[7, 8, 9, 10, 11], [300] * 20, [5] * 200]


def works(generator: Any, model: Path) -> None:
    check_results(generator.generate(GOOD), GOOD, model, LAYER_IDS)


def set_embedding(worker: Any, token_id: int, values: list[float] | None) -> list[float]:
    """In a worker: overwrite one row of the embeddings; returns what was there."""
    weight = worker.model_runner.model.model.embed_tokens.weight
    with torch.inference_mode():
        before: list[float] = weight[token_id].tolist()
        weight[token_id] = torch.tensor(values if values else [float("nan")] * weight.shape[1])
    return before


def mix_up_labels(worker: Any) -> None:
    """In a worker: attribute the rows of each request to its neighbour."""
    capture = worker.specvllm_capture
    label = capture._label

    def mixed_up(scheduler_output: Any) -> Any:
        labels = label(scheduler_output)
        names = [request_id for request_id, _, _ in labels]
        return [(name, *rest) for name, (_, *rest) in zip(names[::-1], labels, strict=True)]

    capture._label = mixed_up


def mix_up_the_last_two_labels(worker: Any) -> None:
    """In a worker: the requests before them come out right."""
    capture = worker.specvllm_capture
    label = capture._label

    def mixed_up(scheduler_output: Any) -> Any:
        *right, (first, *of_first), (second, *of_second) = label(scheduler_output)
        return [*right, (second, *of_first), (first, *of_second)]

    capture._label = mixed_up


def lose_a_hook(worker: Any) -> None:
    """In a worker: one layer is no longer seen, as if it were not called as a module."""
    worker.specvllm_capture._handles[1].remove()


def put_out_fewer_rows(worker: Any) -> None:
    """In a worker: as sequence-parallel layers do, of which each rank has a part of the tokens."""
    layer = worker.model_runner.model.model.layers[1]
    right: list[Any] = []

    def cut(_module: Any, _args: Any, output: Any) -> Any:
        right.append(output)
        return tuple(part[:-1] for part in output)

    worker.cut = [
        layer.register_forward_hook(cut, prepend=True),
        layer.register_forward_hook(lambda *_: right.pop()),
    ]


def put_out_all_rows(worker: Any) -> None:
    for handle in worker.cut:
        handle.remove()


def fail_once(worker: Any) -> None:
    """In a worker: the next forward raises."""
    runner = worker.model_runner
    execute_model = runner.execute_model

    def failing(*args: Any, **kwargs: Any) -> Any:
        runner.execute_model = execute_model
        raise MemoryError("the device is full")

    runner.execute_model = failing


def test_values_that_are_not_finite_are_refused_with_layer_request_and_token(
    generator: Any, llama: Path
) -> None:
    rpc = generator.executor.collective_rpc
    [before] = rpc(set_embedding, args=(77, None))
    try:
        # A masked position counts as 0 times its value: the first row is not finite either.
        with pytest.raises(RuntimeError, match=r"layer 0: states are not finite .*_0', token 0\)"):
            generator.generate([[1, 2, 77, 3]])
        with pytest.raises(RuntimeError, match=r"states are not finite \(request 'req_\d+_3'"):
            generator.generate([[1], [2, 3], [4], [5, 77], [6]])
    finally:
        rpc(set_embedding, args=(77, before))
    works(generator, llama)


def test_rows_of_another_prompts_tokens_are_refused(generator: Any, llama: Path) -> None:
    generator.executor.collective_rpc(mix_up_labels)
    try:
        with pytest.raises(RuntimeError, match="are of other tokens"):
            generator.generate([[1, 2, 3], [4, 5, 6]])
    finally:
        generator._setup_capture()
    works(generator, llama)


def test_requests_that_were_right_do_not_stay_behind_those_that_are_refused(
    generator: Any, llama: Path
) -> None:
    generator.executor.collective_rpc(mix_up_the_last_two_labels)
    try:
        with pytest.raises(RuntimeError, match="are of other tokens"):
            generator.generate([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    finally:
        generator._setup_capture()
    assert not generator.scheduler.requests
    works(generator, llama)


def test_a_layer_that_is_not_called_as_a_module_is_refused(generator: Any, llama: Path) -> None:
    generator.executor.collective_rpc(lose_a_hook)
    try:
        with pytest.raises(RuntimeError, match="decoder layer 1 was not called as a module"):
            generator.generate([[1, 2, 3]])
    finally:
        generator._setup_capture()
    works(generator, llama)


def test_fewer_rows_than_tokens_are_refused(generator: Any, llama: Path) -> None:
    generator.executor.collective_rpc(put_out_fewer_rows)
    try:
        with pytest.raises(RuntimeError, match=r"decoder layer 1 put out \(2, 256\) for 3 tokens"):
            generator.generate([[1, 2, 3]])
    finally:
        generator.executor.collective_rpc(put_out_all_rows)
    works(generator, llama)


def test_a_step_that_raises_fails_its_call_only(generator: Any, llama: Path) -> None:
    for _ in range(2):
        generator.executor.collective_rpc(fail_once)
        with pytest.raises(RuntimeError, match="the device is full"):
            generator.generate(GOOD)
        works(generator, llama)


def test_the_generator_works_in_another_thread(generator: Any, llama: Path) -> None:
    failures: list[BaseException] = []

    def call() -> None:
        try:
            works(generator, llama)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert not failures
    works(generator, llama)


def test_an_interrupt_waits_for_its_step_and_the_next_call_works(
    generator: Any, llama: Path
) -> None:
    # Whoever started this process in the background may have had it ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = 0
    schedule = generator.scheduler.schedule

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:  # as a terminal does: every process gets it
            for worker in generator.executor.workers:
                os.kill(worker.proc.pid, signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return schedule(*args, **kwargs)

    generator.scheduler.schedule = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            generator.generate(tiny.prompts(40, 200, seed=3))
    finally:
        del generator.scheduler.schedule
        after = signal.signal(signal.SIGINT, before)
    assert steps >= 3
    assert after is signal.default_int_handler
    works(generator, llama)


@pytest.mark.own_engine
def test_a_killed_worker_fails_the_call_and_leaves_nothing_behind(
    run_script: Any, small_llama: Path
) -> None:
    seen = run_script("own_deaths.py", small_llama)
    assert "cannot be used any more" in seen["after"]
    assert "create a new one" in seen["after"]
    assert "it was shut down" in seen["after the block"]
    assert seen["prompts"] == 30
    assert seen["alive"] == [False]
    assert seen["children"] == 0
    assert seen["ours in shared memory"] == seen["mapped"] == []
    # The garbage collector, which may wait for ever for one that is open, has none left to close.
    assert (seen["sockets"], seen["sockets left open"]) == (2, 0)


def is_alive(process_id: int) -> bool:
    """False for a process that has ended, also if nobody has asked for its exit status."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.own_engine
def test_speculators_is_imported_first_and_no_worker_outlives_a_killed_script(
    run_script: Any, small_llama: Path
) -> None:
    seen = run_script("own_speculators_first.py", small_llama, status=-signal.SIGKILL)
    assert seen["prompts"] >= 15
    deadline = time.monotonic() + 60
    while any(map(is_alive, seen["workers"])) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(is_alive, seen["workers"]))
