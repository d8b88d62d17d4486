"""Requests in, rows out that are known to be theirs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from specvllm_compat.engine.assembly import Captured, Engine
from specvllm_compat.engine.families import CaptureError
from specvllm_compat.engine.memory import Memory


class Rows:
    """One request's states as they come in: chunk by chunk, again from the start if preempted."""

    def __init__(self, request: Any, layer_ids: list[int], memory: Memory) -> None:
        self.request = request
        self._id: str = request.request_id
        self._token_ids = torch.tensor(request.prompt_token_ids, dtype=torch.int32)
        self.tokens = len(self._token_ids)
        self.layers: dict[int, torch.Tensor] = {}
        self._memory = memory
        self._filled = dict.fromkeys(layer_ids, 0)

    @property
    def complete(self) -> bool:
        """As many rows as tokens, in every layer."""
        return all(filled == self.tokens for filled in self._filled.values())

    def check(self, start: int, token_ids: torch.Tensor) -> None:
        """Refuse rows of other tokens than the prompt's; rows past the prompt are not asked for."""
        expected = self._token_ids[start : start + len(token_ids)]
        if not torch.equal(token_ids[: len(expected)], expected):
            raise CaptureError(f"rows of {self._id!r} from {start} on are of other tokens")

    def add(self, layer_id: int, start: int, rows: torch.Tensor) -> None:
        """Copy rows [n, hidden] to where they belong."""
        filled = self._filled[layer_id]
        if start > filled:
            raise CaptureError(
                f"{self._id!r}, layer {layer_id}: rows {filled} to {start} are missing"
            )
        end = min(start + len(rows), self.tokens)
        if layer_id not in self.layers:
            self.layers[layer_id] = self._memory.empty(self.tokens, rows.shape[1], rows.dtype)
        if end > start:
            self.layers[layer_id][start:end].copy_(rows[: end - start])
            self._filled[layer_id] = end

    def refuse(self) -> None:
        """Raise: the engine is done with the request, and rows are missing."""
        raise CaptureError(
            f"{self._id!r}: {self.tokens} tokens, but rows per layer: {self._filled}"
        )


def run(engine: Engine, requests: Iterable[Any]) -> Iterator[tuple[Any, dict[int, torch.Tensor]]]:
    """Prefill requests; yields each, and ``{layer id: states [tokens, hidden]}`` on the CPU.

    A request comes back as soon as it is complete. Requests are taken as the engine has room for
    them: the tokens of the steps that run at a time wait at most. The requests are vLLM's, with
    ``max_tokens=1``: sampling one token is how a prefill ends. If taking one raises, those before
    it come back first.

    Raises:
        CaptureError: a row is missing or belongs to nobody known.
        RuntimeError: the engine failed. It is cleaned up, or says at the next call that it is not.
    """
    engine.check_usable()
    engine.busy = True
    work = _Work(engine, requests)
    try:
        while not work.done:
            with _interrupt_at_the_end():
                completed = work.advance()
            for rows in completed:
                yield rows.request, rows.layers
        work.finish()
    except BaseException as error:
        engine.recover([finish for _, finish in work.running], error)
        raise
    finally:
        engine.busy = False


class _Work:
    """Requests on their way through an engine."""

    def __init__(self, engine: Engine, requests: Iterable[Any]) -> None:
        self._engine = engine
        self._requests = iter(requests)
        self._exhausted = False
        self._error: BaseException | None = None  # of taking a request
        self._budget: int = engine.vllm_config.scheduler_config.max_num_batched_tokens
        self._idle = False
        self.rows: dict[str, Rows] = {}
        self.running: deque[tuple[Any, Callable[[], tuple[Any, Captured]]]] = deque()

    @property
    def done(self) -> bool:
        """Nothing is left, the empty step included that tells workers what has ended."""
        return self._exhausted and not self.running and not self._engine.scheduler.has_requests()

    def advance(self) -> list[Rows]:
        """Keep the workers busy, sort the oldest running step; the requests that it completed."""
        self._take()
        scheduler = self._engine.scheduler
        while len(self.running) < self._engine.steps_at_a_time and scheduler.has_requests():
            if self.running and not self._waiting():
                break
            step = scheduler.schedule()
            self.running.append((step, self._engine.start(step)))
        if not self.running:
            return []
        step, finish = self.running.popleft()
        output, captured = finish()
        completed = self._sort(captured)
        idle = not step.total_num_scheduled_tokens
        if idle and self._idle and not self.running and scheduler.has_unfinished_requests():
            raise RuntimeError("vLLM schedules nothing more: is the KV cache too small?")
        self._idle = idle
        scheduler.update_from_output(step, output)
        return completed

    def finish(self) -> None:
        """Raise what taking requests raised, or for rows that never came."""
        for rows in self.rows.values():
            rows.refuse()
        if self._error is not None:
            raise self._error

    def _waiting(self) -> int:
        """Tokens that are not in a step yet."""
        return sum(rows.tokens - rows.request.num_computed_tokens for rows in self.rows.values())

    def _take(self) -> None:
        waiting = self._waiting()
        while not self._exhausted and waiting < self._engine.steps_at_a_time * self._budget:
            try:
                request = next(self._requests)
            except StopIteration:
                self._exhausted = True
                break
            except Exception as error:  # noqa: BLE001
                self._exhausted, self._error = True, error
                break
            rows = Rows(request, self._engine.captured_layer_ids, self._engine.memory)
            self.rows[request.request_id] = rows
            waiting += rows.tokens
            self._engine.scheduler.add_request(request)

    def _sort(self, captured: Captured) -> list[Rows]:
        completed = []
        for step, layers in captured:
            offset = 0
            for request_id, start, count in step.labels:
                if request_id not in self.rows:
                    raise CaptureError(f"rows of {request_id!r}, which this call did not ask for")
                rows = self.rows[request_id]
                here = slice(offset, offset + count)
                rows.check(start, step.token_ids[here])
                for layer_id, states in layers.items():
                    rows.add(layer_id, start, states[here])
                if rows.complete:
                    completed.append(self.rows.pop(request_id))
                offset += count
        return completed


@contextlib.contextmanager
def _interrupt_at_the_end() -> Iterator[None]:
    """Hold Ctrl-C back until the block has ended, so that the engine stays usable.

    A second Ctrl-C is not held back.
    """
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if held:
        raise KeyboardInterrupt
