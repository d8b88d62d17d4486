"""Build the engine's configuration the way ``vllm.LLM`` does, from the generator's arguments.

speculators fills vLLM's config classes by hand. Their required fields and defaults differ between
releases, some defaults make states wrong (prefix caching, asynchronous scheduling), and a fixed
block size forbids attention backends. ``EngineArgs`` knows its own release's config classes.
"""

from __future__ import annotations

import os
from typing import Any

from specvllm_compat import engine_args
from specvllm_compat.contract import accepts
from specvllm_compat.shim import Era, Shim, Upstream

_ARGUMENTS = "vllm.engine.arg_utils:EngineArgs"
_GENERATOR = "VllmHiddenStatesGenerator"
_EXTENSION = "speculators.data_generation.custom_worker.HiddenStatesWorkerExtension"
_MIN_BATCHED_TOKENS = 8192  # as speculators has it


def from_engine_args(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A VllmConfig for the generator's arguments, the user's engine arguments, and our defaults."""
    import inspect

    asked = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    chosen = engine_args.current()
    _check_layer_ids(instance.layer_ids)
    if (text := engine_args.workers_left_out(os.environ)) is not None:
        raise ValueError(text)
    if os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0") != "0":
        raise ValueError(
            "VLLM_USE_V2_MODEL_RUNNER must be unset or 0: the V2 model runner keeps no batch order "
            "that captured rows could be attributed by"
        )

    from specvllm_compat.engine.families import refuse_architecture
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    longest = asked["max_model_len"]
    settings: dict[str, Any] = {
        "model": asked["model_path"],
        "trust_remote_code": True,
        "max_model_len": longest,
        "gpu_memory_utilization": asked["gpu_memory_utilization"],
        "tensor_parallel_size": asked["tensor_parallel_size"],
        "max_num_batched_tokens": asked.get("max_num_batched_tokens")
        or max(_MIN_BATCHED_TOKENS, longest),
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "distributed_executor_backend": "mp",
        "worker_extension_cls": _EXTENSION,
        **chosen,
    }
    config = EngineArgs(**settings).create_engine_config(UsageContext.LLM_CLASS)
    refuse_architecture(config.model_config)  # before its weights are loaded
    _make_room_for_the_sampled_token(config)
    return config


def _make_room_for_the_sampled_token(config: Any) -> None:
    """Let a prompt be as long as ``max_model_len``.

    vLLM samples one token after each prompt and counts it. It is never run through the model, so
    no position past the model's own limit is computed.
    """
    if config.model_config.max_model_len in _computed_otherwise_above(config.model_config):
        return  # prompts as long as this are refused
    config.model_config.max_model_len += 1
    if hasattr(config.scheduler_config, "max_model_len"):  # its own copy, gone since 0.12.0
        config.scheduler_config.max_model_len = config.model_config.max_model_len


def _computed_otherwise_above(model_config: Any) -> set[int | None]:
    """The max_model_len above which vLLM computes all positions of a model in another way."""
    if any("Llama4" in architecture for architecture in model_config.architectures):
        return {32768}  # temperatures of attention
    text = model_config.hf_text_config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if "longrope" not in (rope.get("rope_type"), rope.get("type")):
        return set()
    name = "original_max_position_embeddings"  # the long factors instead of the short ones
    return {rope.get(name), getattr(text, name, None)}


def _check_layer_ids(layer_ids: Any) -> None:
    """speculators has checked the range; an empty list or ids that are no integers are left."""
    if not layer_ids:
        raise ValueError("layer_ids is empty: name at least one decoder layer, or pass None")
    odd = [i for i in layer_ids if isinstance(i, bool) or not hasattr(i, "__index__")]
    if odd:
        raise ValueError(f"layer_ids must be integers, not {odd[0]!r}")


SHIM = Shim(
    does="Build the engine's configuration the way vllm.LLM does.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/tree/v0.12.0/vllm/config/scheduler.py",
        first_release="0.12.0",
        delete_when="no supported speculators fills vLLM's config classes by hand",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=accepts(
                _ARGUMENTS,
                "model",
                "trust_remote_code",
                "max_model_len",
                "gpu_memory_utilization",
                "tensor_parallel_size",
                "max_num_batched_tokens",
                "enforce_eager",
                "enable_prefix_caching",
                "async_scheduling",
                "distributed_executor_backend",
                "worker_extension_cls",
            )
            & accepts(f"{_ARGUMENTS}.create_engine_config", "usage_context"),
            adapt={f"{_GENERATOR}._create_vllm_config": from_engine_args},
        ),
    ),
)
