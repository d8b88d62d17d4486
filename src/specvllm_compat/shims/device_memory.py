"""Let speculators 0.3 start without CUDA: it asks ``torch.cuda`` for free memory.

The answer is not used, since vLLM sizes the KV cache itself. speculators 0.4 asks through a helper
of its own that knows other devices.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Shim, Upstream

_GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"


class _Without:
    """A module with some attributes replaced; everything else is the module's own."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def torch_without_cuda(module: ModuleType) -> Any:
    """The consumer's ``torch``, whose CUDA memory query answers (0, 0) where there is no CUDA."""
    torch = module.torch
    if torch.cuda.is_available():
        return torch
    return _Without(torch, cuda=_Without(torch.cuda, mem_get_info=lambda: (0, 0)))


SHIM = Shim(
    module=_GENERATOR,
    applies=~has(f"{_GENERATOR}:mem_get_info"),
    upstream=Upstream(
        change="https://github.com/vllm-project/speculators/pull/232",
        first_release="0.11.0",
        delete_when="speculators 0.3 is unsupported",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=has("vllm.v1.engine.core:EngineCore"),
            provide={"torch": torch_without_cuda},
        ),
    ),
)
