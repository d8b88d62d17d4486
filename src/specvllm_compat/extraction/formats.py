"""The files of one sample, as speculators' trainers load them: 0.3 and 0.4, or 0.5 and later.

A file's bytes are a function of the sample and its states alone: no times, no versions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.files import Sink, write_whole
from specvllm_compat.extraction.preprocess import Sample

DTYPES = ("auto", "float32", "bfloat16", "float16", "fp8")
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_SCALES = "hidden_states_scales"
_LARGEST_FP8 = 448.0  # of float8_e4m3fn


class Format(Protocol):
    """How samples are laid out in a folder."""

    frequencies: str
    """The file of token frequencies, for a draft with a smaller vocabulary."""

    def path(self, folder: Path, index: int) -> Path:
        """The file of one sample."""

    def write(self, sink: Sink, sample: Sample, states: Sequence[Any], dtype: str) -> None:
        """Write a sample and its states, one [tokens, hidden] tensor per layer."""

    def read(self, path: Path) -> tuple[Any, Any, list[Any]]:
        """Token ids, loss mask (None if it is elsewhere), and states per layer, not yet in memory.

        Raises:
            OSError, ValueError, RuntimeError, LookupError: it is no such file.
        """

    def indices(self, folder: Path) -> list[int]:
        """The samples that have a file."""

    def write_beside(self, folder: Path, owner: str, lengths: Sequence[int]) -> None:
        """What trainers want beside the samples and the rows."""

    def training(self, model: str, folder: Path, layer_ids: Sequence[int], dtype: str) -> str:
        """The command to train with."""


class Pt:
    """``data_{i}.pt`` with ``input_ids``, a list ``hidden_states``, and ``loss_mask``."""

    frequencies = "token_freq.pth"  # 0.3 takes every file for a sample whose name ends in "pt"

    def path(self, folder: Path, index: int) -> Path:
        return folder / f"data_{index}.pt"

    def write(self, sink: Sink, sample: Sample, states: Sequence[Any], dtype: str) -> None:
        import torch

        tokens, mask = (torch.tensor(part) for part in sample)
        layers = [_own(_as(state, dtype)) for state in states]
        torch.save({"input_ids": tokens, "hidden_states": layers, "loss_mask": mask}, sink)

    def read(self, path: Path) -> tuple[Any, Any, list[Any]]:
        import torch

        data = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        return data["input_ids"], data["loss_mask"], list(data["hidden_states"])

    def indices(self, folder: Path) -> list[int]:
        return _numbers(folder, "data_", ".pt")

    def write_beside(self, folder: Path, owner: str, lengths: Sequence[int]) -> None:
        named = {str(index): int(length) for index, length in enumerate(lengths)}
        write_whole(folder / "sample_lengths.json", json.dumps(named), owner)

    def training(self, model: str, folder: Path, layer_ids: Sequence[int], dtype: str) -> str:
        return (
            "in a checkout of speculators 0.4 (0.3 wants --d2t-path and --t2d-path, too):\n"
            f"  python scripts/train.py --verifier-name-or-path {model} --data-path {folder}"
        )


class Safetensors:
    """``hidden_states/hs_{i}.safetensors``: ``hidden_states`` [tokens, layers, hidden], ids."""

    frequencies = "token_freq.pt"

    def path(self, folder: Path, index: int) -> Path:
        return folder / "hidden_states" / f"hs_{index}.safetensors"

    def write(self, sink: Sink, sample: Sample, states: Sequence[Any], dtype: str) -> None:
        import torch
        from safetensors.torch import save

        stacked = torch.stack([_as(state, dtype) for state in states], dim=1)
        tensors = {"hidden_states": stacked, "token_ids": torch.tensor(sample[0])}
        if dtype == "fp8":
            # One scale per token over all layers, as hs-connectors' FP8 transfer reads it.
            largest = stacked.abs().amax(dim=(1, 2), keepdim=True)
            scales = (largest / _LARGEST_FP8).clamp(min=1e-12)
            tensors["hidden_states"] = (stacked / scales).to(torch.float8_e4m3fn)
            tensors[_SCALES] = scales
        sink.write(save(tensors))

    def read(self, path: Path) -> tuple[Any, Any, list[Any]]:
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            data = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path.name}: {error}") from None
        states = data["hidden_states"]
        if _SCALES in data:
            states = (states.float() * data[_SCALES]).to(torch.bfloat16)
        return data["token_ids"], None, list(states.unbind(dim=1))

    def indices(self, folder: Path) -> list[int]:
        return _numbers(folder / "hidden_states", "hs_", ".safetensors")

    def write_beside(self, folder: Path, owner: str, lengths: Sequence[int]) -> None:
        """The rows are all that these trainers want."""

    def training(self, model: str, folder: Path, layer_ids: Sequence[int], dtype: str) -> str:
        *targets, _ = (str(i + 1) for i in layer_ids)
        backend = " --hidden-states-backend fp8" if dtype == "fp8" else ""
        return (
            "with speculators 0.9:\n"
            f"  speculators train --speculator-type eagle3 --verifier-name-or-path {model} "
            f"--data-path {folder} --target-layer-ids {' '.join(targets)} --on-missing raise"
            f"{backend}"
        )


FORMATS: dict[str, Format] = {"pt": Pt(), "safetensors": Safetensors()}


def check_format(format: str, dtype: str) -> None:
    """Refuse what no trainer reads."""
    if format not in FORMATS:
        raise BadInput(f"--format {format}: there are {' and '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype}: there are {', '.join(DTYPES)}")
    if dtype == "fp8" and format == "pt":
        raise BadInput("--dtype fp8 goes with --format safetensors: no trainer reads it from .pt")


def bytes_per_token(layers: int, hidden: int, dtype: str) -> int:
    """The states, two int64 in the sample's file, and two more in the rows."""
    return layers * hidden * _WIDTH[dtype] + 4 * 8


def _as(state: Any, dtype: str) -> Any:
    """In the dtype to store, or the one to scale from."""
    import torch

    return state if dtype == "auto" else state.to(getattr(torch, dtype, torch.float32))


def _own(state: Any) -> Any:
    """Not a view into something larger: that would be saved, too."""
    if state.is_contiguous() and state.untyped_storage().nbytes() == state.nbytes:
        return state
    return state.contiguous().clone()


def _numbers(folder: Path, before: str, after: str) -> list[int]:
    names = (path.name for path in folder.glob(f"{before}*{after}"))
    numbers = (name.removeprefix(before).removesuffix(after) for name in names)
    return sorted(int(number) for number in numbers if number.isdecimal())
