"""An engine that vLLM assembles itself, in this process, and the states its workers capture.

``EngineCore(vllm_config, executor_class, log_stats)`` is what vLLM's own in-process client builds
in every release since 0.10.2: it plans KV cache groups, resolves block sizes and layout, profiles
memory, warms up and builds the scheduler.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from specvllm_compat.engine.capture import Description, Reply, Step
from specvllm_compat.engine.families import CaptureError
from specvllm_compat.engine.memory import Memory
from specvllm_compat.engine.transport import Bell, steps_at_a_time

log = logging.getLogger("specvllm_compat")

_CLEANING = 60.0  # seconds

# Call a method in all workers: (executor, its name, its arguments) -> what waits for the replies
Send = Callable[[Any, str, "tuple[Any, ...]"], Callable[[], "list[Any]"]]
# One step's rows, of one pipeline stage: {layer id: states [rows, hidden]}
Captured = list[tuple[Step, dict[int, torch.Tensor]]]

_engines: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()


class Engine:
    """Executor, scheduler and KV cache config of one EngineCore, and its captured states.

    ``execute`` names the worker's method that makes a step whole: ``specvllm_execute`` or
    ``specvllm_execute_and_sample``.
    """

    def __init__(self, vllm_config: Any, execute: str, send: Send) -> None:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        built: list[Any] = []

        def executor_class(config: Any) -> Any:
            kind = Executor.get_class(config)
            if not issubclass(kind, MultiprocExecutor):
                raise ValueError(
                    f"{kind.__name__} cannot be asked for captured states: leave "
                    "distributed_executor_backend at 'mp'"
                )
            built.append(kind(config))
            return built[0]

        self.vllm_config = vllm_config
        self.broken: str | None = None
        self.busy = False
        self._execute, self._send = execute, send
        try:
            core = EngineCore(vllm_config, executor_class, log_stats=False)
        except BaseException:
            for executor in built:  # nobody else knows of its workers
                queues = _queues(executor)
                executor.shutdown()
                _close_sockets(queues)
            raise
        self.executor = core.model_executor
        self.scheduler = core.scheduler
        self.kv_cache_config = core.scheduler.kv_cache_config
        parallel = vllm_config.parallel_config
        self.steps_at_a_time = steps_at_a_time(parallel.pipeline_parallel_size)
        # Called in the opposite order, at exit at the latest
        weakref.finalize(self, _close_sockets, _queues(self.executor))
        own = getattr(self.executor, "_finalizer", None)
        self._end = weakref.finalize(self, _shut_down, self.executor.shutdown, own)
        self.memory = Memory(0)
        self._sources: list[tuple[int, Description, torch.Tensor | None]] = []
        self._bells: list[Bell] = []
        self._steps = 0  # that were started
        _engines[id(vllm_config)] = self

    def ignore_kv_cache_configs(self, kv_cache_configs: Any) -> None:
        """In place of ``initialize_from_config``, which EngineCore has called already."""

    def close(self) -> None:
        """End the worker processes. Safe to call again; the generator's ``__del__`` does."""
        self.broken = self.broken or "it was shut down"
        self._end()
        if not self.busy:  # else vLLM's own thread calls this, for a worker that died in a step
            self._sources = []  # the workers' memory is unmapped
            self.memory.close()

    def attach(self, replies: list[Any]) -> None:
        """Map what the workers described; refuse workers that did not answer as ours do."""
        self._sources, self._bells, self._steps = [], [], 0
        for rank, reply in enumerate(replies):
            if not isinstance(reply, Description):
                raise CaptureError(
                    f"worker {rank} is not adapted, its states would be wrong. Install "
                    "specvllm-compat in the environment of the workers too, as a package that "
                    "vLLM finds among its plugins."
                )
            if reply.segment is None:
                continue
            try:
                states = reply.segment.map()
                self._bells.append(Bell.at(reply.segment.bell))
            except OSError:
                states = None
                log.warning("worker %d is on another host: its states travel by RPC", rank)
            self._sources.append((rank, reply, states))
        # As much as the steps under way hold is worth keeping for the results of the next ones.
        self.memory = Memory(sum(s.nbytes for _, _, s in self._sources if s is not None))

    @property
    def captured_layer_ids(self) -> list[int]:
        """The distinct ids that are captured, over all pipeline stages, ascending."""
        return sorted(i for _, description, _ in self._sources for i in description.layer_ids)

    def start(self, scheduler_output: Any) -> Callable[[], tuple[Any, Captured]]:
        """Have the workers run a step; returns what waits for its end.

        That returns vLLM's output and, per pipeline stage, the rows. The states are valid until
        the end of the next step but one.
        """
        pickled = any(states is None for _, _, states in self._sources)
        arguments = (scheduler_output, self.executor.output_rank, pickled)
        replies = self._send(self.executor, self._execute, arguments)
        self._steps += 1
        steps = self._steps

        def finish() -> tuple[Any, Captured]:
            for bell in self._bells:
                bell.wait(steps)
            answers: list[Reply] = replies()
            if error := next((answer.error for answer in answers if answer.error), None):
                raise CaptureError(error)
            found = []
            for rank, description, mapped in self._sources:
                if step := answers[rank].step:
                    states = step.states if mapped is None else mapped[step.buffer]
                    assert states is not None
                    found.append((step, dict(zip(description.layer_ids, states, strict=True))))
            return answers[self.executor.output_rank].output, found

        return finish

    def captured_by_layer_or_request(self, by_request: bool) -> Any:
        """States of all steps that were not collected, for scripts that run steps themselves.

        By request: ``{request id: [states [tokens, hidden] per layer]}``; else one tensor of all
        rows per layer. Layers ascend, each once. None if nothing was captured.
        """
        replies = self.executor.collective_rpc("specvllm_take_all")
        layers: dict[int, list[torch.Tensor]] = {}
        requests: dict[str, dict[int, list[torch.Tensor]]] = {}
        for rank, description, _ in self._sources:
            for labels, states in replies[rank]:
                offset = 0
                for request_id, _, count in labels:
                    for index, layer_id in enumerate(description.layer_ids):
                        rows = states[index, offset : offset + count]
                        layers.setdefault(layer_id, []).append(rows)
                        requests.setdefault(request_id, {}).setdefault(layer_id, []).append(rows)
                    offset += count
        if not layers:
            return None
        if not by_request:
            return [torch.cat(layers[i]) for i in sorted(layers)]
        return {
            request_id: [torch.cat(parts[i]) for i in sorted(parts)]
            for request_id, parts in requests.items()
        }

    def recover(self, running: Iterable[Callable[[], Any]], error: BaseException) -> None:
        """After a failed call: drop all requests and run until the engine is empty, or give up.

        An interrupted RPC leaves its reply behind, which the next call would take for its own;
        so replies have to be paired with their calls before the engine is used again.
        """
        from vllm.v1.request import RequestStatus

        self.broken = f"an earlier call failed ({type(error).__name__}: {error})"
        ranks = self.vllm_config.parallel_config.world_size
        if ranks > 1 and isinstance(error, Exception):  # others may wait long for one that failed
            log.warning("a call failed, the steps under way are waited for: %s", repr(error))
        if getattr(self.executor, "is_failed", False) or not self._end.alive:
            return
        try:
            for finish in running:
                with contextlib.suppress(Exception):  # its reply was read, which is what counts
                    finish()
            nonce = uuid.uuid4().hex
            answers = self.executor.collective_rpc("specvllm_clean", _CLEANING, args=(nonce,))
            if set(answers) != {nonce}:
                return
            # All: one whose rows were complete may not have been taken out of the scheduler yet.
            left = list(self.scheduler.requests)
            self.scheduler.finish_requests(left, RequestStatus.FINISHED_ABORTED)
            if self.scheduler.has_requests():
                step = self.scheduler.schedule()
                self.scheduler.update_from_output(step, self.start(step)()[0])
            self.broken = None
        except Exception:
            log.exception("the engine could not be cleaned up after a failed call")

    def check_usable(self) -> None:
        if getattr(self.executor, "is_failed", False):
            self.broken = self.broken or "a worker process died"
        if self.busy:
            raise RuntimeError(
                "this generator is at work: let its generate() return, or exhaust or close() what "
                "iter_generate() gave you"
            )
        if self.broken:
            raise RuntimeError(
                f"This engine cannot be used any more: {self.broken}. Delete the generator and "
                "create a new one."
            )


def _queues(executor: Any) -> list[Any]:
    """The message queues to the workers and back, by all names that releases have for them."""
    workers = getattr(executor, "workers", [])
    found = [
        getattr(executor, "rpc_broadcast_mq", None),
        *getattr(executor, "response_mqs", []),
        *(getattr(worker, "worker_response_mq", None) for worker in workers),
    ]
    return list({id(queue): queue for queue in found if queue is not None}.values())


def _shut_down(shutdown: Callable[[], None], own_finalizer: Any) -> None:
    """End the workers, and vLLM's own finalizer, which would hold the executor until the exit."""
    shutdown()
    if own_finalizer is not None:
        own_finalizer.detach()


def _close_sockets(queues: Iterable[Any]) -> None:
    """Close the sockets of queues that nobody reads any more.

    Left to the garbage collector, which may find a queue's ZeroMQ context before its sockets, the
    context waits for them for ever.
    """
    for queue in queues:
        for name in ("local_socket", "remote_socket"):
            socket = getattr(queue, name, None)
            if socket is not None:
                socket.context.destroy(linger=0)


def engine_of(vllm_config: Any) -> Engine:
    """The engine that was assembled for this very config."""
    engine = _engines.get(id(vllm_config))
    if engine is None or engine.vllm_config is not vllm_config:
        raise RuntimeError("no engine was assembled for this vllm_config: build its executor first")
    return engine
