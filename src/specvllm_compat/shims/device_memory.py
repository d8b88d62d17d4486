"""Answer the question for free device memory, which fails without CUDA.

speculators 0.3 asks ``torch.cuda``, 0.4 a helper of its own; both raise where there is no driver,
and open a context on device 0 of the wrong process where there is one. The answer is not used,
since vLLM sizes the KV cache itself.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Replacing, Shim, Upstream


def nothing_free(*_: Any) -> tuple[int, int]:
    """Free and total bytes, without asking a device."""
    return 0, 0


def torch_without_memory_query(module: ModuleType) -> Any:
    """The ``torch`` of a speculators that asks ``torch.cuda`` itself."""
    torch = module.torch
    if hasattr(module, "mem_get_info"):
        return torch
    return Replacing(torch, cuda=Replacing(torch.cuda, mem_get_info=nothing_free))


SHIM = Shim(
    does="Start without CUDA: the memory query is answered without asking a device.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    upstream=Upstream(
        change="https://github.com/vllm-project/speculators/pull/232",
        first_release="0.11.0",
        delete_when="no supported speculators sizes the KV cache itself",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=has("vllm.v1.engine.core:EngineCore"),
            adapt={"mem_get_info": nothing_free},
            provide={"torch": torch_without_memory_query},
        ),
    ),
)
