"""Answer Scheduler from the assembled engine, and build Request as this vLLM wants it.

``Scheduler`` asked for a block size in 0.11.1 and a hash block size in 0.20.0; the engine has one
that fits its KV cache. ``Request`` lost ``eos_token_id`` in 0.17.0 (nightlies of 0.16 already).
"""

from __future__ import annotations

from typing import Any

from specvllm_compat.contract import accepts
from specvllm_compat.shim import Era, Shim, Upstream, dropping

_GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_REQUEST = "vllm.v1.request:Request.__init__"
_NEEDED = (
    "request_id",
    "prompt_token_ids",
    "sampling_params",
    "pooling_params",
    "arrival_time",
    "block_hasher",
)


def scheduler_of_the_engine(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """The scheduler that the assembled engine runs with."""
    from specvllm_compat.engine.assembly import engine_of

    def of(vllm_config: Any, *_: Any, **__: Any) -> Any:
        return engine_of(vllm_config).scheduler

    return of(*args, **kwargs)


SCHEDULER = Shim(
    does="Take the scheduler from that engine.",
    module=_GENERATOR,
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/tree/v0.11.1/vllm/v1/core/sched/scheduler.py",
        first_release="0.11.1",
        delete_when="no supported speculators builds a Scheduler itself",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=accepts(f"{_SCHEDULER}.add_request", "request")
            & accepts(f"{_SCHEDULER}.update_from_output", "scheduler_output", "model_runner_output")
            & accepts(f"{_SCHEDULER}.finish_requests", "request_ids", "finished_status"),
            adapt={"Scheduler": scheduler_of_the_engine},
        ),
    ),
)

REQUEST = Shim(
    does="Build requests without eos_token_id where vLLM no longer takes it.",
    module=_GENERATOR,
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/tree/v0.17.0/vllm/v1/request.py",
        first_release="0.17.0",
        delete_when="no supported speculators passes eos_token_id",
    ),
    eras=(
        Era(since="0.11.0", probe=accepts(_REQUEST, "eos_token_id", *_NEEDED)),
        Era(
            since="0.17.0",
            probe=~accepts(_REQUEST, "eos_token_id") & accepts(_REQUEST, *_NEEDED),
            adapt={"Request": dropping("eos_token_id")},
        ),
    ),
)
