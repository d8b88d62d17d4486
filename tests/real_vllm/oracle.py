"""Compares the generator's results with Hugging Face's states, and counts what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tiny
import torch

TOLERANCE = 1e-5


@dataclass
class Tally:
    """How many prompts were compared in this process and the largest relative error among them."""

    prompts: int = 0
    largest_error: float = 0.0

    def add(self, prompts: int, error: float) -> None:
        self.prompts += prompts
        self.largest_error = max(self.largest_error, math.inf if math.isnan(error) else error)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


TALLY = Tally()


def relative_error(states: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference within a row, relative to that row's largest entry, over all rows."""
    difference = (states.double() - expected.double()).abs().amax(dim=-1)
    return float((difference / expected.double().abs().amax(dim=-1)).max())


def check_states(
    states: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str
) -> None:
    """Every layer has the right rows, in float32 on the CPU, equal to the reference."""
    assert len(states) == len(expected), f"{what}: {len(states)} layers, not {len(expected)}"
    errors = []
    for layer, (found, wanted) in enumerate(zip(states, expected, strict=True)):
        where = f"{what}, position {layer} in layer_ids"
        assert isinstance(found, torch.Tensor), f"{where}: {type(found).__name__}"
        assert found.shape == wanted.shape, f"{where}: {found.shape}, not {wanted.shape}"
        assert found.dtype == torch.float32, f"{where}: {found.dtype}"
        assert found.device.type == "cpu", f"{where}: {found.device}"
        errors.append(relative_error(found, wanted))
    worst = max(errors)
    TALLY.add(1, worst)
    assert worst <= TOLERANCE, f"{what}: relative errors by layer {errors}"


def check_results(
    results: list[dict[str, Any]],
    prompts: Sequence[Sequence[int]],
    model: Path,
    layer_ids: list[int],
) -> None:
    """One complete and correct result per prompt, in the order of the prompts."""
    assert len(results) == len(prompts), f"{len(results)} results for {len(prompts)} prompts"
    for index, (result, prompt) in enumerate(zip(results, prompts, strict=True)):
        what = f"prompt {index} of {len(prompts)} ({len(prompt)} tokens)"
        assert set(result) == {"input_ids", "hidden_states", "loss_mask"}, f"{what}: {set(result)}"
        assert result["loss_mask"] is None, what
        assert result["input_ids"].dtype == torch.int64, what
        assert result["input_ids"].tolist() == list(prompt), f"{what}: other input_ids"
        check_states(result["hidden_states"], tiny.reference(model, list(prompt), layer_ids), what)
