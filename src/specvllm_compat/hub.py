"""The folder of a model that is named as users name it: by a path, or by an id on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from specvllm_compat.preflight.locate import CannotTell

MODEL_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.py", "*.tiktoken"]


def model_folder(name: str) -> Path:
    """The folder of a model; of one of the Hub's, with config and tokenizer but not the weights.

    Raises:
        CannotTell: there is none.
    """
    here = Path(name)
    if here.exists():
        return here
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
        raise CannotTell(f"--model {name}: no such folder, and no id on the hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=MODEL_FILES))
    except Exception as error:  # noqa: BLE001  # of many types; each says why there is no model
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotTell(
            f"--model {name}: no such folder, and not found on the hub ({reason[0]})"
        ) from None
