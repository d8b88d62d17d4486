"""What is known of the target model before it is loaded: its size, its layers, its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.hub import MODEL_FILES, model_folder

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLE = 1 << 16
_KNOWN = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Model:
    """``folder`` holds config and tokenizer; ``name`` is what the engine is given."""

    name: str
    folder: Path
    layers: int
    hidden: int
    vocabulary: int | None
    dtype: str
    digest: str

    def check_layer_ids(self, asked: Sequence[int] | None) -> list[int]:
        """The ids asked for, or those of the layers that vLLM serves EAGLE-3 drafts with.

        vLLM's auxiliary ids count the embeddings as 0: its 2, n // 2 and n - 3 are the outputs of
        the layers 1, n // 2 - 1 and n - 4.

        Raises:
            BadInput: the model has no such layers.
        """
        n = self.layers
        ids = list(asked) if asked else [1, n // 2 - 1, n - 4, n - 1]
        if wrong := [i for i in ids if not 0 <= i < n]:
            whose = "" if asked else f" of the defaults {ids}"
            raise BadInput(
                f"{self.name} has {n} decoder layers, so layer ids {wrong}{whose} are not in "
                f"[0, {n - 1}]: name others with --layer-ids"
            )
        if len(ids) < 2 or len(set(ids)) < len(ids):
            raise BadInput(
                f"layer ids {ids}: trainers take the last one for the verifier's output and the "
                "others as their input; name two or more, each once, with --layer-ids"
            )
        return ids


def read_model(name: str, engine_dtype: str | None = None) -> Model:
    """Look at a model's folder, or at the small files of a model on the hub.

    Raises:
        BadInput: there is none, or its config does not tell what is needed.
    """
    from specvllm_compat.preflight import CannotTell
    from specvllm_compat.preflight.model_facts import dimensions, model_facts, read_config
    from specvllm_compat.source import SourceLens

    here = Path(name).expanduser()
    try:
        folder = model_folder(str(here))
        config = read_config(folder)
    except CannotTell as error:
        raise BadInput(str(error)) from None
    layers, hidden = dimensions(config)
    _, problems = model_facts(config, SourceLens(kept=True), [layers - 1], 1)
    if problems:
        raise BadInput(f"{name}: {'; '.join(problems)}")
    return Model(
        name=str(here) if here.exists() else name,
        folder=folder,
        layers=layers,
        hidden=hidden,
        vocabulary=next((v for v in _values(config, "vocab_size") if isinstance(v, int)), None),
        dtype=_dtype(engine_dtype if engine_dtype else _own_dtype(config)),
        digest=_digest(folder) if here.exists() else folder.resolve().name,  # the commit
    )


def _dtype(named: Any) -> str:
    """What the states will be in, for the estimate."""
    name = str(named).removeprefix("torch.")
    return {"float": "float32", "half": "float16"}.get(name, name if name in _KNOWN else "bfloat16")


def _own_dtype(config: dict[str, Any]) -> str:
    """vLLM runs a float32 checkpoint in 16 bits unless told otherwise."""
    own = str(next(_values(config, "dtype", "torch_dtype"), "bfloat16"))
    return "bfloat16" if "32" in own else own


def _values(config: dict[str, Any], *names: str) -> Iterator[Any]:
    """What the config, or a config in it, has under these names."""
    for inner in [config, *(value for value in config.values() if isinstance(value, dict))]:
        yield from (inner[name] for name in names if inner.get(name))


def _digest(folder: Path) -> str:
    """Of the config and tokenizer files, and of samples of the weights: other weights differ."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and (
            path.suffix in _WEIGHTS or any(path.match(pattern) for pattern in MODEL_FILES)
        ):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            for part in _samples(path) if path.suffix in _WEIGHTS else [path.read_bytes()]:
                digest.update(part)
    return digest.hexdigest()[:32]


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        for part in range(8):
            file.seek(part * size // 8)
            yield file.read(_SAMPLE)
