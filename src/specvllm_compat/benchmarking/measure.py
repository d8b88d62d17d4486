"""One loaded engine: prefill alone, extraction, and extraction with everything saved."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specvllm_compat.benchmarking import machine
from specvllm_compat.benchmarking.carrying import Carrier, Step
from specvllm_compat.benchmarking.outcome import Outcome
from specvllm_compat.benchmarking.samples import rates

Prompts = list[list[int]]

_STEPS = 4  # that are carried: the first and the last one have nobody beside them


def bench(
    model: str,
    *,
    prompts: int = 16,
    length: int = 512,
    layer_ids: Sequence[int] | None = None,
    engine_args: Mapping[str, Any] | None = None,
    rounds: int = 3,
) -> Outcome:
    """Load a model, and measure on random prompts what its hidden states cost beside its prefill.

    Raises:
        ValueError: an argument is impossible; found before the model is loaded.
    """
    for name, number in (("prompts", prompts), ("length", length), ("rounds", rounds)):
        if number < 1:
            raise ValueError(f"{name} must be 1 or more, not {number}")
    from specvllm_compat.engine_args import added
    from specvllm_compat.shim import installed

    with added(engine_args or {}):
        from speculators.data_generation.vllm_hidden_states_generator import (
            VllmHiddenStatesGenerator,
        )

        generator = VllmHiddenStatesGenerator(
            model, layer_ids=list(layer_ids) if layer_ids else None, max_model_len=length
        )
    try:
        config = generator.vllm_config.model_config
        vocabulary = config.get_vocab_size()
        seconds = _take_turns(
            generator, [_random(prompts, length, vocabulary, seed) for seed in range(rounds + 1)]
        )
        step = Step(
            layers=len(set(generator.layer_ids)),
            rows=generator.vllm_config.scheduler_config.max_num_batched_tokens,
            hidden=config.get_hidden_size(),
            dtype=str(config.dtype).removeprefix("torch."),
            length=length,
        )
        device = generator.vllm_config.device_config.device_type
    finally:
        generator.executor.shutdown()
    with Carrier(step, device) as carrier:
        carrying = [carrier.run(_STEPS) for _ in range(rounds)]
    return Outcome(
        model=model,
        layer_ids=list(generator.layer_ids),
        prompts=prompts,
        length=length,
        dtype=step.dtype,
        bytes_per_token=step.bytes // step.rows,
        vllm=installed("vllm").text,
        machine=machine.describe(),
        seconds=seconds,
        transport=rates(_STEPS * step.bytes / 1e9, carrying),
        copy=rates(step.bytes / 1e9, machine.copying(step.bytes, rounds)),
    )


def _take_turns(generator: Any, batches: Sequence[Prompts]) -> dict[str, list[float]]:
    """Seconds per way and batch; the first batch fills memory and caches, and is not counted."""
    seconds: dict[str, list[float]] = {"prefill": [], "extraction": [], "saved": []}
    for number, batch in enumerate(batches):
        _capture(generator, [])
        runs = [("prefill", _timed(_prefill, generator, batch))]
        _capture(generator, generator.layer_ids)
        _extract(generator, batch)  # new memory is taken into use
        runs.append(("extraction", _timed(_extract, generator, batch)))
        with tempfile.TemporaryDirectory() as folder:
            runs.append(("saved", _timed(_save, generator, batch, folder)))
        if number:
            for way, each in runs:
                seconds[way].append(each)
    return seconds


def _timed(call: Callable[..., None], *arguments: Any) -> float:
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def _capture(generator: Any, layer_ids: list[int]) -> None:
    """Capture other layers from now on; with none, the engine is as vLLM made it."""
    from specvllm_compat.engine.assembly import engine_of

    replies = generator.executor.collective_rpc("_setup_hidden_states_capture", args=(layer_ids,))
    engine_of(generator.vllm_config).attach(replies)


def _prefill(generator: Any, prompts: Prompts) -> None:
    """Run prompts as vLLM does."""
    from speculators.data_generation.vllm_hidden_states_generator import Request
    from vllm.sampling_params import SamplingParams

    scheduler, executor = generator.scheduler, generator.executor
    for prompt in prompts:
        generator._request_counter += 1
        scheduler.add_request(
            Request(
                request_id=f"prefill_{generator._request_counter}",
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
                pooling_params=None,
                eos_token_id=None,
                arrival_time=0.0,
                block_hasher=None,
            )
        )
    while scheduler.has_requests():
        step = scheduler.schedule()
        scheduler.update_from_output(step, executor.execute_model(step))


def _extract(generator: Any, prompts: Prompts) -> None:
    for _ in generator.iter_generate(prompts):
        continue


def _save(generator: Any, prompts: Prompts, folder: str) -> None:
    import torch

    for index, result in generator.iter_generate(prompts):
        torch.save(result, Path(folder, f"data_{index}.pt"))


def _random(count: int, length: int, vocabulary: int, seed: int) -> Prompts:
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
