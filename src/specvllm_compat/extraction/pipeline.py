"""Reading, computing and writing at the same time, with a bound on what waits between them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_END = object()


def read_ahead(items: Iterable[Item], depth: int) -> Generator[Item, None, None]:
    """The items, taken in a thread of their own, at most ``depth`` of them in advance."""
    waiting: queue.Queue[Any] = queue.Queue(depth)
    stopped = threading.Event()
    failures: list[BaseException] = []

    def offer(item: object) -> None:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def read() -> None:
        try:
            for item in items:
                offer(item)
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  # raised where the items are used
            failures.append(error)
        offer(_END)

    thread = threading.Thread(target=read, name="specvllm-reader", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not _END:
            yield item
        if failures:
            raise failures[0]
    finally:
        stopped.set()
        thread.join()


class Writers(Generic[Item]):
    """Threads that write what is put; the first error of one is raised by the next ``put``.

    Leaving the block waits for what was put, also when an error ends it: it is complete, and
    computing it again would cost more.
    """

    def __init__(self, write: Callable[[Item], None], threads: int, depth: int) -> None:
        self._write = write
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"specvllm-writer-{i}", daemon=True)
            for i in range(threads)
        ]

    def __enter__(self) -> Writers[Item]:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for _ in self._threads:
            self._queue.put(_END)
        for thread in self._threads:
            thread.join()
        if error is None:
            self._raise()

    def put(self, item: Item) -> None:
        """Hand an item over; waits while as many as allowed are waiting."""
        self._raise()
        self._queue.put(item)

    def waiting(self) -> int:
        """How many items wait."""
        return self._queue.qsize()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (item := self._queue.get()) is not _END:
            if self._failure is None:  # after a failure, only make room
                try:
                    self._write(item)
                except BaseException as error:  # noqa: BLE001  # raised by `put`
                    self._failure = error
