"""The catalog: every shim, in the order of application."""

from __future__ import annotations

from specvllm_compat.contract import SourceLens
from specvllm_compat.shim import Shim, installed
from specvllm_compat.shims import (
    config_fields,
    constructors,
    context_manager,
    decoder_forward,
    device_memory,
    generate,
    kv_cache_config,
    model_files,
    moved_names,
    two_phase,
)

FLOOR = (0, 11)
"""The oldest vLLM that is supported."""

CATALOG: dict[str, Shim] = {
    "attention_mask_module": moved_names.ATTENTION_MASK,
    "annotations": moved_names.ANNOTATIONS,
    "hashing_module": moved_names.HASHING,
    "kv_planning_names": moved_names.KV_PLANNING,
    "model_files": model_files.SHIM,
    "config_fields": config_fields.SHIM,
    "two_phase": two_phase.SHIM,
    "kv_cache_config": kv_cache_config.SHIM,
    "scheduler": constructors.SCHEDULER,
    "request": constructors.REQUEST,
    "device_memory": device_memory.SHIM,
    "decoder_forward_driver": decoder_forward.DRIVER,
    "decoder_forward": decoder_forward.WORKER,
    "generate": generate.SHIM,
    "context_manager": context_manager.SHIM,
}

GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"


def consumer_gone(module_name: str, lens: SourceLens | None = None) -> str | None:
    """A sentence if this module is the generator's and speculators lacks it.

    Without a ``lens`` Python has looked for the module already.
    """
    if module_name not in (GENERATOR, GENERATOR.rpartition(".")[0]):
        return None
    at = lens or SourceLens()
    if at.file("speculators") is None or (lens and lens.file(module_name)):
        return None
    release = installed("speculators", lens).text
    return (
        f"speculators {release} has no VllmHiddenStatesGenerator (0.5.0 removed it; some builds of "
        "0.4.0 leave data_generation out). Install a release that has it, without its pins: "
        "pip install --no-deps speculators==0.4.0.1"
    )
