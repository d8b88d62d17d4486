"""Answer the executor from an engine that vLLM assembled, and close every step it is given.

``execute_model`` may return None and leave the step open until ``sample_tokens`` runs; the next
``execute_model`` then raises "State error". speculators 0.3 never samples, 0.4 hands the wrong
argument over. The reply of one rank also turned from a list of one into the value itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from specvllm_compat.contract import LiveLens, accepts, has
from specvllm_compat.shim import Era, Shim, Upstream

_CORE = "vllm.v1.engine.core:EngineCore"
_EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
_ASSEMBLED = (
    accepts(f"{_CORE}.__init__", "vllm_config", "executor_class", "log_stats")
    & has("vllm.v1.executor.abstract:Executor.get_class")
    & accepts(f"{_EXECUTOR}.execute_model", "scheduler_output")
    & accepts(f"{_EXECUTOR}.collective_rpc", "method", "timeout", "args", "non_block")
)
# 0.4 tells the worker which request has how many tokens, and expects states by request.
BY_REQUEST = has(
    "speculators.data_generation.custom_worker:HiddenStatesWorkerExtension._set_request_metadata"
)


def one_phase(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """The executor of an assembled engine, whose ``execute_model`` is whole as it is."""
    executor = _executor("specvllm_execute", send_to_threads, *args, **kwargs)
    executor.sample_tokens = already_sampled
    return executor


def two_phases(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """The executor of an assembled engine, with ``execute_model`` made to close its step."""
    executor = _executor("specvllm_execute_and_sample", send, *args, **kwargs)
    execute_model, sample_tokens = executor.execute_model, executor.sample_tokens

    def close_the_step(*step: Any, **options: Any) -> Any:
        output = execute_model(*step, **options)
        return sample_tokens(None) if output is None else output

    executor.execute_model = close_the_step
    executor.sample_tokens = already_sampled
    return executor


def send(executor: Any, method: str, args: Any) -> Callable[[], list[Any]]:
    """Call a method in all workers; replies are read in the order of the calls."""
    future = executor.collective_rpc(method, patience(), args, non_block=True)
    replies: Callable[[], list[Any]] = future.result
    return replies


def send_to_threads(executor: Any, method: str, args: Any) -> Callable[[], list[Any]]:
    """The same where a thread has to read the replies, and each worker's reply is a future."""
    if executor.io_thread_pool is None:  # vLLM makes one only for pipeline stages
        executor.io_thread_pool = ThreadPoolExecutor(max_workers=1)
    futures = executor.collective_rpc(method, patience(), args, non_block=True)
    return lambda: [future.result() for future in futures]


def patience() -> float:
    """Seconds until a rank that never answers is an error: vLLM's own, for two steps at a time."""
    return 2.0 * int(os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300"))


def already_sampled(grammar_output: Any = None) -> Any:
    """The step is closed; speculators 0.4 hands its output over here, and gets it back."""
    return grammar_output


def _executor(execute: str, send: Any, vllm_config: Any) -> Any:
    from specvllm_compat.engine.assembly import Engine

    engine = Engine(vllm_config, execute, send)
    executor, collective_rpc = engine.executor, engine.executor.collective_rpc
    # The engine is initialised already; holding the bound method keeps it alive.
    executor.initialize_from_config = engine.ignore_kv_cache_configs
    executor.shutdown = engine.close
    by_request = BY_REQUEST.holds(LiveLens())

    def states_as_the_consumer_knows_them(method: Any, *args: Any, **kwargs: Any) -> Any:
        if method != "_get_captured_states":
            return collective_rpc(method, *args, **kwargs)
        states = engine.captured_by_layer_or_request(by_request)
        # speculators 0.3 knows the reply as a list of one, as it was in vLLM 0.11.0.
        return states if by_request else [states]

    executor.collective_rpc = states_as_the_consumer_knows_them
    return executor


SHIM = Shim(
    does="Take the executor from an engine vLLM assembled, and close every step it is given.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/pull/26866",
        first_release="0.11.1",
        delete_when="no supported speculators drives the executor itself",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=_ASSEMBLED & ~has(f"{_EXECUTOR}.sample_tokens"),
            adapt={"MultiprocExecutor": one_phase},
        ),
        Era(
            since="0.11.1",
            probe=_ASSEMBLED & accepts(f"{_EXECUTOR}.sample_tokens", "grammar_output"),
            adapt={"MultiprocExecutor": two_phases},
        ),
    ),
)
