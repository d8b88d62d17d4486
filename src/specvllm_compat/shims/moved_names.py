"""Put names back where speculators imports them from.

vLLM and transformers moved or removed modules and names that speculators imports at the top, so
that ``import speculators`` fails before anything runs. Only additions: nothing that is there
changes. A name whose meaning we cannot give refuses when it is called.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Provider, Shim, UnsupportedVllm, Upstream

_PLANNING = "vllm.v1.core.kv_cache_planning"
_PLANNING_NAMES = (
    "_get_kv_cache_groups_uniform_spec",
    "get_kv_cache_config_from_groups",
    "unify_hybrid_kv_cache_specs",
)


def forwarding(home: str, name: str) -> Provider:
    """A function that looks its namesake up when called: an import here could be circular."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(home), name)(*args, **kwargs)

    def forwarding_to_its_new_home(_: ModuleType) -> Any:
        return forward

    return forwarding_to_its_new_home


def torch_itself(_: ModuleType) -> ModuleType:
    """The name that annotations use, and that only type checkers import."""
    return import_module("torch")


def hashing_module(utils: ModuleType) -> ModuleType:
    """``vllm.utils.hashing`` with the one function that speculators takes from it."""
    module = ModuleType("vllm.utils.hashing")
    vars(module)["get_hash_fn_by_name"] = utils.get_hash_fn_by_name
    return module


def attention_mask_module(_: ModuleType) -> ModuleType:
    """``transformers.modeling_attn_mask_utils`` for the import in speculators' EAGLE-1 model."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedVllm(
            "_prepare_4d_causal_attention_mask was removed from transformers. speculators' EAGLE-1 "
            "model needs it: install a transformers that has it (5.19 does) to run that model."
        )

    module = ModuleType("transformers.modeling_attn_mask_utils")
    vars(module)["_prepare_4d_causal_attention_mask"] = refuse
    return module


KV_PLANNING = Shim(
    does="Put the KV planning functions back where speculators imports them from.",
    module="vllm.v1.core.kv_cache_utils",
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/tree/v0.33.0/vllm/v1/core/kv_cache_planning.py",
        first_release="0.33.0",
        delete_when="no supported speculators imports these names",
    ),
    eras=(
        Era(since="0.11.0", probe=has(f"vllm.v1.core.kv_cache_utils:{_PLANNING_NAMES[0]}")),
        Era(
            since="0.33.0",
            probe=has(f"{_PLANNING}:{_PLANNING_NAMES[0]}"),
            provide={name: forwarding(_PLANNING, name) for name in _PLANNING_NAMES},
        ),
    ),
)

HASHING = Shim(
    does="Let speculators 0.4 import vllm.utils.hashing from a vLLM that has no such module.",
    module="vllm.utils",
    upstream=Upstream(
        change="https://github.com/vllm-project/vllm/tree/v0.11.1/vllm/utils/hashing.py",
        first_release="0.11.1",
        delete_when="vLLM 0.11.0 is below the floor",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=has("vllm.utils:get_hash_fn_by_name") & ~has("vllm.utils.hashing"),
            provide={"hashing": hashing_module},
        ),
        Era(since="0.11.1", probe=has("vllm.utils.hashing:get_hash_fn_by_name")),
    ),
)

ANNOTATIONS = Shim(
    does="Let pydantic resolve the annotations of transformers' configs, which name torch.",
    module="transformers.configuration_utils",
    provider="transformers",
    upstream=Upstream(
        change="https://github.com/huggingface/transformers/releases/tag/v5.0.0",
        first_release="5.0.0",
        delete_when="no supported speculators builds pydantic models on PretrainedConfig",
    ),
    eras=(
        Era(since="4.56", probe=~has("transformers.configuration_utils:PreTrainedConfig")),
        Era(
            since="5.0",
            probe=has("transformers.configuration_utils:PreTrainedConfig"),
            provide={"torch": torch_itself},
        ),
    ),
)

ATTENTION_MASK = Shim(
    does="Let speculators import transformers.modeling_attn_mask_utils, which is gone.",
    module="transformers",
    provider="transformers",
    upstream=Upstream(
        change="https://github.com/huggingface/transformers/releases/tag/v5.24.0",
        first_release="5.24.0",
        delete_when="no supported speculators imports transformers.modeling_attn_mask_utils",
    ),
    eras=(
        Era(since="4.56", probe=has("transformers.modeling_attn_mask_utils")),
        Era(
            since="5.24",
            probe=~has("transformers.modeling_attn_mask_utils"),
            provide={"modeling_attn_mask_utils": attention_mask_module},
        ),
    ),
)
