"""Bad input is found here, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specvllm_compat.hub import model_folder
from specvllm_compat.preflight.locate import CannotTell
from specvllm_compat.preflight.model_facts import model_facts, read_config
from specvllm_compat.shim import installed
from specvllm_compat.shims import GENERATOR, consumer_gone
from specvllm_compat.source import SourceLens

SHORTEST, LONGEST = 16, 512
"""Fewer tokens than the first can't be cut into chunks; the second is what runs by default."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def check(model: str, layer_ids: Sequence[int] | None, max_model_len: int | None) -> int:
    """The length of the longest prompt; what can't work is refused, and what to do about it said.

    Raises:
        CannotTell: a package or the model is missing, or an argument does not fit the model.
    """
    lens = SourceLens()
    if lens.files("vllm") is None:
        raise CannotTell("vLLM is not installed here")
    if lens.files("speculators") is None:
        raise CannotTell("speculators is not installed here: pip install --no-deps speculators")
    if gone := consumer_gone(GENERATOR, lens):
        raise CannotTell(gone)
    if layer_ids is not None and not layer_ids:
        raise CannotTell("layer ids: name at least one, or leave them out")
    if max_model_len is not None and max_model_len < SHORTEST:
        raise CannotTell(f"a longest prompt of {max_model_len} tokens: {SHORTEST} are the least")
    folder = model_folder(model)
    if Path(model).exists() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise CannotTell(f"{model} holds no weights ({', '.join(_WEIGHTS)})")
    config = read_config(folder)
    _, problems = model_facts(config, lens, layer_ids, LONGEST)
    if problems:
        raise CannotTell("; ".join(problems))
    text = config.get("text_config", config)
    limit = text.get("max_position_embeddings") if isinstance(text, dict) else None
    return max_model_len or min(LONGEST, limit or LONGEST)


def versions() -> dict[str, str]:
    """Of everything that a state depends on."""
    import specvllm_compat

    names = ("vllm", "speculators", "transformers", "torch")
    found = {name: installed(name).text for name in names}
    return found | {"specvllm-compat": specvllm_compat.__version__}
