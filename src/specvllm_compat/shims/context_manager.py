"""Let ``with`` end the worker processes, however the block ends.

speculators leaves it to ``__del__``, which runs when the last reference is gone: an exception's
traceback keeps one, and at the interpreter's exit it may not run at all.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Shim, Upstream


def enter(self: Any) -> Any:
    """The generator itself: its engine runs already."""
    return self


def leave(self: Any, *_: object) -> None:
    """End the worker processes; nothing is kept from being raised."""
    self.executor.shutdown()


def entering(_: ModuleType) -> Any:
    """``__enter__``: the class has none."""
    return enter


def leaving(_: ModuleType) -> Any:
    """``__exit__``: the class has none."""
    return leave


SHIM = Shim(
    does="Let `with` end the worker processes.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    upstream=Upstream(
        change="https://github.com/vllm-project/speculators/issues/365",
        first_release="0.11.0",
        delete_when="no supported speculators has this class (0.5.0 removed it unrepaired)",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=has("vllm.v1.executor.abstract:Executor.get_class"),
            provide={
                "VllmHiddenStatesGenerator.__enter__": entering,
                "VllmHiddenStatesGenerator.__exit__": leaving,
            },
        ),
    ),
)
