"""Answer KV cache groups and config from the engine that vLLM assembled itself.

speculators plans one uniform KV cache group from a fifth of the free memory of device 0. The
planning functions changed their arguments, need a resolved layout since 0.29.0, moved in 0.33.0,
and forcing one group fails for hybrid models.
"""

from __future__ import annotations

from typing import Any

from specvllm_compat.contract import accepts
from specvllm_compat.shim import Era, Shim, Upstream


def leave_specs_alone(wrapped: Any, _: Any, args: Any, kwargs: Any) -> None:
    """Nothing to unify: vLLM has planned hybrid groups as the model needs them."""


def groups_were_planned(wrapped: Any, _: Any, args: Any, kwargs: Any) -> list[Any]:
    """Only handed on to `config_of_the_engine`, which knows the real groups."""
    return []


def config_of_the_engine(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """The KVCacheConfig that the assembled engine runs with."""
    from specvllm_compat.engine.assembly import engine_of

    def of(vllm_config: Any, *_: Any, **__: Any) -> Any:
        return engine_of(vllm_config).kv_cache_config

    return of(*args, **kwargs)


SHIM = Shim(
    does="Take the KV cache plan from that engine, hybrid models included.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/tree/v0.29.0/vllm/v1/core/kv_cache_utils.py",
        first_release="0.11.1",
        delete_when="no supported speculators plans the KV cache itself",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=accepts("vllm.v1.core.sched.scheduler:Scheduler.__init__", "kv_cache_config"),
            adapt={
                "unify_hybrid_kv_cache_specs": leave_specs_alone,
                "_get_kv_cache_groups_uniform_spec": groups_were_planned,
                "get_kv_cache_config_from_groups": config_of_the_engine,
            },
        ),
    ),
)
