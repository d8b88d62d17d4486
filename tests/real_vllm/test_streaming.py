"""``iter_generate()``: results as they come, of more prompts than fit into memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from conftest import ENGINE_ARGS, LAYER_IDS, MAX_MODEL_LEN
from oracle import check_results

CHUNK = ENGINE_ARGS["max_num_batched_tokens"]
GOOD = [[7, 8, 9, 10, 11], [300] * 20, [5] * 200]


def in_order(found: dict[int, Any]) -> list[Any]:
    assert sorted(found) == list(range(len(found)))
    return [found[index] for index in range(len(found))]


def works(generator: Any, model: Path) -> None:
    check_results(generator.generate(GOOD), GOOD, model, LAYER_IDS)


def test_every_prompt_comes_back_once_under_its_index(generator: Any, llama: Path) -> None:
    prompts = tiny.prompts(60, MAX_MODEL_LEN, seed=31)
    found = dict(generator.iter_generate(prompts))
    check_results(in_order(found), prompts, llama, LAYER_IDS)


def test_the_states_are_those_of_generate_bit_by_bit(generator: Any) -> None:
    prompts = tiny.prompts(20, MAX_MODEL_LEN, seed=32)
    found = in_order(dict(generator.iter_generate(prompts)))
    for one, other in zip(found, generator.generate(prompts), strict=True):
        for states, expected in zip(one["hidden_states"], other["hidden_states"], strict=True):
            assert torch.equal(states, expected)


def test_an_endless_stream_is_taken_as_there_is_room_and_can_be_closed(
    generator: Any, llama: Path
) -> None:
    taken: list[list[int]] = []

    def endless() -> Iterator[list[int]]:
        for number in itertools.count():
            taken.append([(number + k) % 512 for k in range(50)])
            yield taken[-1]

    stream = generator.iter_generate(endless())
    found = dict(itertools.islice(stream, 12))
    # Two steps run, and two steps' worth of tokens wait.
    assert len(taken) * 50 <= 12 * 50 + 5 * CHUNK
    stream.close()
    assert not generator.scheduler.has_requests()
    check_results(
        [found[i] for i in sorted(found)], [taken[i] for i in sorted(found)], llama, LAYER_IDS
    )
    works(generator, llama)


def test_a_bad_prompt_loses_none_of_those_before_it(generator: Any, llama: Path) -> None:
    prompts = [*tiny.prompts(30, 100, seed=33), [1, 512], [1]]
    found: dict[int, Any] = {}
    with pytest.raises(ValueError, match="prompt 30 holds token id 512"):
        found.update(generator.iter_generate(prompts))
    check_results(in_order(found), prompts[:30], llama, LAYER_IDS)
    works(generator, llama)


def test_a_failing_source_of_prompts_loses_none_of_those_before_it(
    generator: Any, llama: Path
) -> None:
    prompts = tiny.prompts(10, 100, seed=34)

    def failing() -> Iterator[list[int]]:
        yield from prompts
        raise OSError("the disk is gone")

    found: dict[int, Any] = {}
    with pytest.raises(OSError, match="the disk is gone"):
        found.update(generator.iter_generate(failing()))
    check_results(in_order(found), prompts, llama, LAYER_IDS)
    works(generator, llama)


def test_no_prompts_give_no_results(generator: Any) -> None:
    assert list(generator.iter_generate([])) == []


def test_another_call_during_a_stream_is_refused_and_the_stream_goes_on(
    generator: Any, llama: Path
) -> None:
    prompts = tiny.prompts(30, 100, seed=35)
    stream = generator.iter_generate(prompts)
    found = dict(itertools.islice(stream, 2))
    with pytest.raises(RuntimeError, match="is at work"):
        generator.generate(GOOD)
    found.update(stream)
    check_results(in_order(found), prompts, llama, LAYER_IDS)
    works(generator, llama)


def test_a_caller_that_fails_in_the_middle_of_a_stream_can_go_on(
    generator: Any, llama: Path
) -> None:
    def consume() -> None:
        for index, _ in generator.iter_generate(tiny.prompts(30, 100, seed=36)):
            if index == 3:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    works(generator, llama)


def test_results_do_not_change_while_the_stream_goes_on(generator: Any, llama: Path) -> None:
    prompts = tiny.prompts(40, 100, seed=37)
    kept = in_order(dict(generator.iter_generate(prompts)))
    list(generator.iter_generate(tiny.prompts(40, 100, seed=38)))
    check_results(kept, prompts, llama, LAYER_IDS)
