"""From conversations to training data: extract hidden states of whole data sets, and convert them.

    from specvllm_compat.extraction import extract
    extract(model="meta-llama/Llama-3.1-8B-Instruct", data="sharegpt.json", output_dir="states")

The same as ``specvllm-compat extract``. A run can be killed at any moment; the same call goes on
where it stopped, and the files are those of a run that nothing disturbed.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from specvllm_compat.extraction.converting import convert as convert
    from specvllm_compat.extraction.errors import BadInput as BadInput
    from specvllm_compat.extraction.errors import Incomplete as Incomplete
    from specvllm_compat.extraction.extracting import extract as extract

_HOMES = {
    "BadInput": "errors",
    "Incomplete": "errors",
    "convert": "converting",
    "extract": "extracting",
}
__all__ = ["BadInput", "Incomplete", "convert", "extract"]


def __getattr__(name: str) -> object:  # the command line is light to start
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
