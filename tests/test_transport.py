"""Memory between a worker and the driver, and the copies into it from a device."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specvllm_compat.engine.transport import (  # noqa: E402
    Bell,
    DeviceWriter,
    Segment,
    Shared,
    Writer,
    steps_at_a_time,
    writer,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

HIDDEN, STEPS = 8, steps_at_a_time(1)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fill(segment: Segment, value: float) -> None:
    segment.map().fill_(value)


def test_another_process_writes_what_this_one_reads() -> None:
    shared = Shared(STEPS, 3, 5, HIDDEN, torch.bfloat16)
    segment = shared.segment
    states = segment.map()
    process = multiprocessing.get_context("spawn").Process(target=fill, args=(segment, 2.5))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert states.shape == (STEPS, 3, 5, HIDDEN)
    assert states.dtype == torch.bfloat16
    assert (states == 2.5).all()


def test_memory_of_another_host_is_not_taken_for_ours() -> None:
    shared = Shared(STEPS, 1, 1, HIDDEN, torch.float32)
    segment = shared.segment
    with pytest.raises(FileNotFoundError):  # a descriptor of that number, but of something else
        replace(segment, name="specvllm-another").map()
    del shared
    with pytest.raises(FileNotFoundError):
        segment.map()


def test_more_memory_than_there_is_gets_an_error_that_says_what_to_do() -> None:
    before = descriptors()
    with pytest.raises(MemoryError, match=r"MiB are needed .* Lower max_num_batched_tokens"):
        Shared(STEPS, 64, 1 << 30, 1 << 20, torch.float32)
    assert descriptors() == before


def test_nothing_is_left_in_shared_memory_and_no_descriptor_stays_open() -> None:
    before, files = descriptors(), sorted(os.listdir("/dev/shm"))
    for _ in range(300):
        shared = Shared(STEPS, 2, 16, HIDDEN, torch.float32)
        worker, driver = shared.segment.map(), shared.segment.map()
        bell = Bell.at(shared.segment.bell)
        worker[1, 0, 3] = 7
        shared.bell.ring()
        bell.wait(1)
        assert driver[1, 0, 3].tolist() == [7] * HIDDEN
        del shared, worker, driver, bell
    gc.collect()
    assert descriptors() == before
    assert sorted(os.listdir("/dev/shm")) == files


# --- a bell instead of a busy wait


def ring(connection: Any, rings: int) -> None:
    """A worker whose steps take a while, and that dies after the last one."""
    shared = Shared(STEPS, 1, 1, HIDDEN, torch.float32)
    connection.send(shared.segment.bell)
    connection.recv()
    for _ in range(rings):
        time.sleep(0.1)
        shared.bell.ring()


def test_the_driver_sleeps_until_a_step_has_ended_or_the_worker_is_dead() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=ring, args=(there, 3))
    process.start()
    bell = Bell.at(here.recv())
    here.send("go")
    spent = time.process_time()
    for step in (1, 2, 3, 4):  # the fourth never ends
        bell.wait(step)
    process.join()
    assert process.exitcode == 0
    assert time.process_time() - spent < 0.1


def test_rings_that_nobody_hears_do_not_stop_a_worker_and_are_counted() -> None:
    shared = Shared(STEPS, 1, 1, HIDDEN, torch.float32)
    bell = Bell.at(shared.segment.bell)
    for _ in range(5):
        shared.bell.ring()
    bell.wait(2)
    bell.wait(5)
    for _ in range(100_000):  # more than a pipe holds
        shared.bell.ring()


# --- copies from a device: a stream that runs as late as a real one may


class LateStream:
    """A stream that does nothing before somebody waits for it."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], Any]] = []

    def wait_stream(self, other: LateStream) -> None:
        self.pending.append(other.synchronize)

    def synchronize(self) -> None:
        pending, self.pending = self.pending, []
        for work in pending:
            work()


class Late(TorchDispatchMode):
    """Copies that are made under this mode happen when their stream runs."""

    def __init__(self, stream: LateStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            assert args[2] is True, "a copy that does not block, or nothing overlaps"
            self._stream.pending.append(lambda: torch.Tensor.copy_(args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


class LateDevice:
    """What `torch.cuda` is to a writer."""

    def __init__(self) -> None:
        self.compute = LateStream()

    Stream = LateStream

    def current_stream(self) -> LateStream:
        return self.compute

    @contextlib.contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        with Late(stream):
            yield


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tensors whose memory has to wait for a stream."""
    seen: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, _: seen.append(tensor))
    return seen


def rows(seed: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("with_residual", [True, False])
def test_states_from_a_device_are_those_at_the_time_of_the_layer(
    recorded: list[Any], with_residual: bool
) -> None:
    into = torch.zeros(4, HIDDEN)
    hidden, residual = rows(1), rows(2) if with_residual else None
    expected = hidden + residual if residual is not None else hidden.clone()
    device = DeviceWriter(LateDevice())
    written = device.write(into, hidden, residual)
    assert not into.any(), "the copy did not run late: this test would prove nothing"
    hidden.fill_(99)  # as the norm of the next layer does
    if residual is not None:
        residual.fill_(99)
    device.finish()
    assert torch.equal(into, expected)
    assert torch.equal(written, expected)
    assert recorded == [written] or recorded[0] is written


def test_what_a_device_computes_is_awaited_before_it_is_copied(recorded: list[Any]) -> None:
    device = LateDevice()
    into, hidden = torch.zeros(4, HIDDEN), rows(1)
    late = hidden.clone()
    hidden.zero_()
    copies = DeviceWriter(device)
    written = copies.write(into, hidden, None)
    device.compute.pending.append(lambda: written.copy_(late))  # the layer's kernels end only now
    copies.finish()
    assert torch.equal(into, late)


def test_a_device_has_copied_everything_when_its_memory_is_unpinned(recorded: list[Any]) -> None:
    into, hidden = torch.zeros(4, HIDDEN), rows(1)
    arrived: list[bool] = []
    copies = DeviceWriter(LateDevice(), lambda: arrived.append(torch.equal(into, hidden)))
    copies.write(into, hidden, None)
    copies.close()
    assert arrived == [True]


@pytest.mark.parametrize("used", [Writer(), DeviceWriter(LateDevice())], ids=["cpu", "device"])
def test_other_types_come_out_in_the_type_of_the_model(recorded: list[Any], used: Writer) -> None:
    into = torch.zeros(4, HIDDEN, dtype=torch.bfloat16)
    hidden, residual = rows(1), rows(2, torch.bfloat16)
    used.write(into, hidden, residual)
    used.finish()
    assert torch.equal(into, (hidden + residual).bfloat16())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_states_of_a_real_device_arrive_in_pinned_memory_of_another_process() -> None:
    layers, tokens, hidden = 4, 2048, 4096
    shared = Shared(STEPS, layers, tokens, hidden, torch.bfloat16)
    driver, worker = shared.segment.map(), shared.segment.map()
    device = writer(torch.device("cuda"), worker)
    for step in range(20):
        expected = []
        for layer in range(layers):
            one = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
            other = torch.randn_like(one)
            expected.append((one + other).cpu())
            device.write(worker[step % STEPS, layer], one, other)
            one.fill_(99)
            other.fill_(99)
        device.finish()
        assert torch.equal(driver[step % STEPS], torch.stack(expected))
    device.close()
    writer(torch.device("cuda"), worker).close()  # it can be pinned again
