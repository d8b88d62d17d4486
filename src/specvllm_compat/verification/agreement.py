"""When two computations of a state agree, and what it looks like when they don't.

The error of a row is its largest difference, relative to the row's largest entry: residual streams
have a few entries that are far larger than the rest, and they set the size of a rounding step.

The same call in the same shape has to give the same bits. Other shapes sum in another order. A
state after decoder layer L is the sum of 2 (L + 1) outputs of sub-layers, each of which brings a
rounding error of its own, independent of the others: they add up as the root of their number. How
large one is depends on the dtype. Half-precision products are summed in float32 and rounded once:
one step of the dtype, eps. In float32 every sum is rounded too, which for K terms makes eps times
the root of K. Eight times that is allowed:

    limit = FACTOR * eps * sqrt(2 (L + 1)) * (sqrt(hidden size) in float32, else 1)

Where a router picks experts, a rounding error may tip the choice, and the state is another one.
So with experts in half precision only a difference as large as the state itself counts: GROSS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from specvllm_compat.verification.report import OK, WRONG, Check

FACTOR = 8.0
GROSS = 1.0
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

# Where, the layer ids, and per layer id the states found and expected, both [tokens, hidden]
Pair = tuple[str, Sequence[int], Sequence[torch.Tensor], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Limits:
    """The largest errors that rounding explains, for one model in one dtype."""

    dtype: torch.dtype
    hidden_size: int
    has_experts: bool

    @classmethod
    def of(cls, model_config: Any) -> Limits:
        """For a model as vLLM runs it."""
        text = model_config.hf_text_config
        experts = any((getattr(text, name, None) or 0) > 1 for name in _EXPERTS)
        return cls(model_config.dtype, model_config.get_hidden_size(), experts)

    def at(self, layer_id: int) -> float:
        """For the states after this decoder layer."""
        rounding: float = torch.finfo(self.dtype).eps
        if self.dtype in (torch.float32, torch.float64):
            rounding *= math.sqrt(self.hidden_size)
        elif self.has_experts:
            return GROSS
        return FACTOR * rounding * math.sqrt(2 * (layer_id + 1))

    def exact(self, _layer_id: int) -> float:
        """Bit for bit."""
        return 0.0


def errors(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Per row the largest difference, relative to the largest entry; infinite for NaN."""
    wanted = expected.double()
    difference = (found.double() - wanted).abs().amax(dim=-1)
    relative = difference / wanted.abs().amax(dim=-1)
    relative[difference == 0] = 0.0  # a row of zeros that is one
    return relative.nan_to_num(nan=math.inf, posinf=math.inf)


def compare(name: str, compared: str, pairs: Iterable[Pair], limit: Any) -> Check:
    """One check: the worst row of all pairs, against its layer's limit."""
    worst: tuple[float, float, float, str] | None = None
    for where, layer_ids, found, expected in pairs:
        for layer_id, one, other in zip(layer_ids, found, expected, strict=True):
            if one.shape != other.shape:
                what = f"{where}, layer {layer_id}: {list(one.shape)} for {list(other.shape)}"
                return Check(name, compared, WRONG, remark=f"{what} values")
            by_row = errors(one, other)
            row = int(by_row.argmax())
            error, allowed = float(by_row[row]), limit(layer_id)
            excess = error / allowed if allowed else error
            if worst is None or excess > worst[0]:
                place = f"{where}, layer {layer_id}, row {row}"
                if error > allowed:
                    place += _as_another_row(one[row], other, row, allowed)
                worst = (excess, error, allowed, place)
    assert worst is not None, f"{name}: nothing to compare"
    _, error, allowed, place = worst
    if error <= allowed:
        return Check(name, compared, OK, error, allowed)
    return Check(name, compared, WRONG, error, allowed, place)


def _as_another_row(state: torch.Tensor, expected: torch.Tensor, row: int, limit: float) -> str:
    """A remark if this state is the one expected in another row."""
    by_row = errors(state.expand_as(expected), expected)
    other = int(by_row.argmin())
    return f" holds the state of row {other}" if other != row and by_row[other] <= limit else ""
