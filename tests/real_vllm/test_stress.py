"""Hundreds of calls, many of which fail: nothing leaks, and the states stay right."""

from __future__ import annotations

import gc
import itertools
import os
import random
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny
from conftest import LAYER_IDS, MAX_MODEL_LEN
from oracle import check_results
from test_conditions import fail_once, lose_a_hook, mix_up_labels

CALLS = 400


def footprint(_: Any = None) -> tuple[int, int, int]:
    """Descriptors, mapped segments and MiB of private memory of this process, driver or worker."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:specvllm")
    memory = psutil.Process().memory_full_info()
    return len(os.listdir("/proc/self/fd")), mapped, memory.uss >> 20


def one_call(generator: Any, draw: random.Random) -> None:
    prompts = tiny.prompts(draw.randint(1, 12), draw.randint(4, 60), seed=draw.randrange(1 << 30))
    kind = draw.choice(["generate"] * 6 + ["stream", "close", "bad", "step", "labels", "layer"])
    if kind == "generate":
        assert len(generator.generate(prompts)) == len(prompts)
    elif kind == "stream":
        assert len(dict(generator.iter_generate(prompts))) == len(prompts)
    elif kind == "close":
        stream = generator.iter_generate(itertools.cycle(prompts))
        list(itertools.islice(stream, draw.randint(0, 20)))
        stream.close()
    elif kind == "bad":
        with pytest.raises(ValueError, match="is empty"):
            generator.generate([*prompts, []])
    else:
        breaking = {"step": fail_once, "labels": mix_up_labels, "layer": lose_a_hook}[kind]
        generator.executor.collective_rpc(breaking)
        distinct = [[1, 2, 3], [4, 5, 6]]
        with pytest.raises(RuntimeError):
            generator.generate(distinct)
        generator._setup_capture()


def test_hundreds_of_calls_leave_nothing_behind(generator: Any, llama: Path) -> None:
    draw = random.Random(7)
    rpc = generator.executor.collective_rpc
    for _ in range(CALLS // 4):
        one_call(generator, draw)
    before = footprint(), rpc(footprint)[0]
    for _ in range(CALLS):
        one_call(generator, draw)
    after = footprint(), rpc(footprint)[0]
    assert [held for *held, _ in after] == [held for *held, _ in before]
    # The libraries that compute in the worker keep something for every new number of tokens.
    assert after[0][-1] <= before[0][-1] + 16, (before, after)
    prompts = tiny.prompts(20, MAX_MODEL_LEN, seed=8)
    check_results(generator.generate(prompts), prompts, llama, LAYER_IDS)
