"""The same prompts under the conditions of a real run, on one engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from specvllm_compat.verification import auxiliary, prompts
from specvllm_compat.verification.agreement import Limits, Pair, compare
from specvllm_compat.verification.report import NOT_RUN, WRONG, Check

Run = Callable[[Any, "Found"], "Iterator[Pair]"]
States = list[list[torch.Tensor]]  # per prompt, per requested layer, [tokens, hidden]


@dataclass
class Found:
    """What the engine gave for each prompt alone, and the checks so far."""

    prompts: list[list[int]]
    layer_ids: list[int]
    limits: Limits
    alone: States = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def pairs(self, states: States, names: Sequence[int]) -> Iterator[Pair]:
        """States of the prompts of these numbers, each with those of the prompt alone."""
        for n, found in zip(names, states, strict=True):
            yield f"prompt {n}", self.layer_ids, found, self.alone[n]


def start(model: str, layer_ids: Sequence[int] | None, longest: int) -> Any:
    """The generator of the installed speculators, as a script would make it."""
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    ids = None if layer_ids is None else list(layer_ids)
    return VllmHiddenStatesGenerator(model, layer_ids=ids, max_model_len=longest)


def description(generator: Any) -> dict[str, str]:
    """What was checked: the model, its dtype, the layers."""
    config = generator.vllm_config
    architecture = config.model_config.architectures[0]
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    return {
        "model": f"{generator.model_path} ({architecture}, {dtype})",
        "layers": f"{generator.layer_ids}",
    }


class NotRun(Exception):
    """There is nothing to compare with; the text says why."""


def check(generator: Any) -> Found:
    """Run the prompts in every way, and compare."""
    longest = generator.vllm_config.model_config.max_model_len - 1  # one is the sampled token's
    limits = Limits.of(generator.vllm_config.model_config)
    found = Found(prompts.handful(generator.tokenizer, longest), list(generator.layer_ids), limits)
    try:
        found.alone = [_states(generator, [prompt])[0] for prompt in found.prompts]
    except Exception as error:  # noqa: BLE001  # whatever a call raises is the finding
        found.checks.append(_failed("alone", "each prompt in a call of its own", error))
        return found
    for name, compared, run, limit in _RUNS:
        try:
            result = compare(name, compared, run(generator, found), partial(limit, limits))
        except NotRun as reason:
            result = Check(name, compared, NOT_RUN, remark=str(reason))
        except Exception as error:  # noqa: BLE001
            result = _failed(name, compared, error)
        found.checks.append(result)
    return found


def _batched(generator: Any, found: Found) -> Iterator[Pair]:
    order = [*reversed(range(len(found.prompts))), 1]
    yield from found.pairs(_states(generator, [found.prompts[n] for n in order]), order)


def _chunked(generator: Any, found: Found) -> Iterator[Pair]:
    limit = len(found.prompts[-1]) // 3 - 1
    with _steps_of_at_most(generator, limit) as steps:
        states = _states(generator, found.prompts)
    if max(steps) > limit:
        raise NotRun("this scheduler does not heed its token budget")
    yield from found.pairs(states, range(len(found.prompts)))


def _shared_prefix(generator: Any, found: Found) -> Iterator[Pair]:
    shared, batch = prompts.with_shared_prefix(found.prompts)
    expected = [states[:shared] for states in found.alone[-1]]
    for call in range(2):
        for n, states in enumerate(_states(generator, batch)):
            begins = [rows[:shared] for rows in states]
            yield f"call {call}, prompt {n}", found.layer_ids, begins, expected


def _again(generator: Any, found: Found) -> Iterator[Pair]:
    states = [_states(generator, [prompt])[0] for prompt in found.prompts]
    yield from found.pairs(states, range(len(found.prompts)))


def _auxiliary(generator: Any, found: Found) -> Iterator[Pair]:
    if generator.vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise NotRun("vLLM has them of the last pipeline stage only")
    rpc = generator.executor.collective_rpc
    ids = sorted(set(found.layer_ids))
    if not rpc(auxiliary.keep, args=(ids,))[0]:
        raise NotRun("vLLM has none for this model, or they are the source")
    n = len(found.prompts) - 2
    try:
        [ours] = _states(generator, [found.prompts[n]])
    finally:
        forwards = rpc(auxiliary.take)[0]
    theirs = [torch.cat(parts)[: len(ours[0])] for parts in zip(*forwards, strict=True)]
    there = ids[: len(theirs)]  # before vLLM 0.18.0 the last layer has none
    if not there:
        raise NotRun("this vLLM has none after these layers")
    yield f"prompt {n}", there, [ours[found.layer_ids.index(i)] for i in there], theirs


_RUNS: tuple[tuple[str, str, Run, Callable[[Limits, int], float]], ...] = (
    ("batched", "all in one call, one of them twice; each alone", _batched, Limits.at),
    ("chunked", "all in one call, in steps of a third of a prompt; alone", _chunked, Limits.at),
    ("shared prefix", "two calls of prompts that begin alike; alone", _shared_prefix, Limits.at),
    ("again", "each alone; the same at the beginning, bit for bit", _again, Limits.exact),
    ("auxiliary", "vLLM's own outputs of the same forward, bit for bit", _auxiliary, Limits.exact),
)


def _failed(name: str, compared: str, error: Exception) -> Check:
    return Check(name, compared, WRONG, remark=f"{type(error).__name__}: {error}")


def _states(generator: Any, batch: list[list[int]]) -> States:
    states: States = [result["hidden_states"] for result in generator.generate(batch)]
    for n, (prompt, found) in enumerate(zip(batch, states, strict=True)):
        if any(len(rows) != len(prompt) for rows in found):
            rows = [len(rows) for rows in found]
            raise ValueError(f"prompt {n} of the call has {len(prompt)} tokens, its layers {rows}")
    return states


@contextlib.contextmanager
def _steps_of_at_most(generator: Any, tokens: int) -> Iterator[list[int]]:
    """Make the scheduler cut prompts; yields the sizes of the steps it then schedules."""
    scheduler = generator.scheduler
    budget, schedule = scheduler.max_num_scheduled_tokens, scheduler.schedule
    sizes: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        step = schedule(*args, **kwargs)
        sizes.append(step.total_num_scheduled_tokens)
        return step

    scheduler.max_num_scheduled_tokens, scheduler.schedule = tokens, counted
    try:
        yield sizes
    finally:
        scheduler.max_num_scheduled_tokens = budget
        del scheduler.schedule
