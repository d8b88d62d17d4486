"""vLLM's own auxiliary outputs of a model, set against what the generator returns, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from specvllm_compat.verification import auxiliary


def compared(generator: Any, prompt: list[int]) -> int | None:
    """How many layers are bit-identical in both; None if the model has no auxiliary outputs.

    Raises:
        AssertionError: some layers differ, or too few came (up to vLLM 0.17 the last has none).
    """
    rpc, layer_ids = generator.executor.collective_rpc, generator.layer_ids
    distinct = sorted(set(layer_ids))
    if not all(rpc(auxiliary.keep, args=(distinct,))):
        return None
    [result] = generator.generate([prompt])
    forwards = rpc(auxiliary.take)[0]
    theirs = [torch.cat(parts)[: len(prompt)] for parts in zip(*forwards, strict=True)]
    ours = [result["hidden_states"][layer_ids.index(layer_id)] for layer_id in distinct]
    pairs = zip(distinct, ours, theirs, strict=False)
    different = [layer_id for layer_id, one, other in pairs if not torch.equal(one, other)]
    assert not different, f"layers {different} differ from their auxiliary outputs"
    assert len(theirs) >= len(distinct) - 1, f"{len(theirs)} outputs for {len(distinct)} layers"
    return len(theirs)
