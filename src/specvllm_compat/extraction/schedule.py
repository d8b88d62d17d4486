"""Which samples go through the engine together, and on which rank.

A state's last bits depend on what else is in its batch: kernels add in an order that depends on
the shape. So samples go through the engine in fixed groups, one call each, and a group of which a
sample is missing is computed again as a whole: that is what makes a resumed run, and one that was
sharded, identical to an undisturbed one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_STEPS = 32


def groups(lengths: np.ndarray[Any, Any], batch_tokens: int) -> list[np.ndarray[Any, Any]]:
    """Indices by group: of about the same length, `_STEPS` engine steps' worth of tokens each.

    Fewer and larger groups keep the engine busier; smaller ones cost less to compute again.

    The longest come first. What does not fit fails in the first minute, and all ranks end with
    small groups, so at about the same time.
    """
    order = np.argsort(-lengths, kind="stable")
    filled = np.cumsum(lengths[order])
    before = filled - lengths[order]
    borders = np.flatnonzero(np.diff(before // (_STEPS * batch_tokens))) + 1
    return list(np.split(order, borders))


def of_rank(
    everything: list[np.ndarray[Any, Any]], world_size: int, rank: int, done: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any]]:
    """This rank's groups in which something is missing."""
    return [group for group in everything[rank::world_size] if not done[group].all()]
