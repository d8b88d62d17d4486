"""Memory of results: used again, but never while somebody can still see it."""

from __future__ import annotations

import io
import queue
import random
import threading
from collections import deque
from typing import Any

import pytest
import torch
from specvllm_compat.engine.memory import Memory

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def test_it_is_used_again_for_a_prompt_of_nearly_the_same_length() -> None:
    memory = Memory(1 << 20)
    first = memory.empty(40, 128, torch.float32)
    at = first.data_ptr()
    del first
    assert memory.empty(39, 128, torch.float32).data_ptr() == at


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "what", [lambda t: t[-1], lambda t: t.numpy(), lambda t: t.T, lambda t: t.view(-1)[3:5]]
)
def test_whatever_sees_a_part_of_it_keeps_all_of_it(what: Any, dtype: torch.dtype) -> None:
    memory = Memory(1 << 20)
    tensor = memory.empty(10, 16, dtype).fill_(3)
    if dtype == torch.bfloat16:  # which numpy does not know
        tensor = tensor.view(torch.int16)
    at = tensor.data_ptr()
    seen = what(tensor)
    expected = torch.as_tensor(what(tensor.clone()))
    del tensor
    others = [memory.empty(10, 16, dtype).fill_(7) for _ in range(4)]
    assert at not in [other.data_ptr() for other in others]
    assert torch.equal(torch.as_tensor(seen), expected)


def test_closed_it_keeps_nothing() -> None:
    memory = Memory(1 << 20)
    tensors = [memory.empty(10, 16, torch.float32).fill_(3) for _ in range(2)]
    tensors.pop()
    memory.close()
    assert memory._kept == 0
    assert tensors[0].eq(3).all()
    tensors.clear()
    assert memory._kept == 0


def test_it_outlives_the_engine() -> None:
    memory = Memory(1 << 20)
    tensor = memory.empty(10, 16, torch.float32).fill_(3)
    del memory
    assert tensor.eq(3).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_saving_a_result_saves_nothing_else(dtype: torch.dtype) -> None:
    tensor = Memory(1 << 20).empty(33, 100, dtype)
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    torch.save(tensor, written := io.BytesIO())
    assert len(written.getvalue()) < tensor.nbytes + 2000


def test_what_waits_is_bounded_and_the_oldest_goes_first() -> None:
    memory = Memory(3 * 4096)
    old = [memory.empty(8, 128, torch.float32) for _ in range(3)]
    new = [memory.empty(16, 128, torch.float32)]
    at = {tensor.data_ptr() for tensor in new}
    old.clear()
    new.clear()
    assert memory._kept == 3 * 4096
    assert memory.empty(16, 128, torch.float32).data_ptr() in at
    larger = memory.empty(32, 128, torch.float32)
    del larger  # more than may wait at all
    assert memory._kept == 0


def test_threads_that_let_go_while_another_asks() -> None:
    memory = Memory(1 << 16)
    held: queue.Queue[torch.Tensor | None] = queue.Queue()
    wrong: list[torch.Tensor] = []

    def let_go() -> None:
        while (tensor := held.get()) is not None:
            if not tensor.eq(tensor[0, 0].item()).all():
                wrong.append(tensor)

    threads = [threading.Thread(target=let_go, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    choose = random.Random(0)
    mine: deque[tuple[int, torch.Tensor]] = deque(maxlen=20)
    for number in range(1000):
        for keep in (lambda n, t: mine.append((n, t)), lambda n, t: held.put(t)):
            keep(number, memory.empty(choose.randint(1, 40), 64, torch.float32).fill_(number))
        assert all(bool(tensor.eq(number).all()) for number, tensor in mine)
    for _ in threads:
        held.put(None)
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 <= memory._kept <= 1 << 16
