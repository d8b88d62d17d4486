"""A check to run before a training run: on one's own model and vLLM, do hidden states agree?

A handful of prompts runs alone, batched, chunked, repeated and behind a shared prefix. Their states
have to agree with each other, with vLLM's own auxiliary outputs where the model has them, and with
Hugging Face's where the model fits into memory a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing this must stay cheap: the command line does
    from specvllm_compat.verification.report import Report

__all__ = ["verify"]


def verify(
    model: str,
    *,
    layer_ids: Sequence[int] | None = None,
    vllm_only: bool = False,
    engine_args: Mapping[str, Any] | None = None,
    max_model_len: int | None = None,
) -> Report:
    """Start one engine for ``model`` (a folder, or an id on the Hugging Face Hub) and check it.

    ``layer_ids``: the generator's defaults if left out. ``vllm_only``: leave Hugging Face out.
    ``engine_args``: on top of those of ``specvllm_compat.configure()``. ``max_model_len``: the
    length of the longest prompt, by default 512 or what the model takes.

    Raises:
        CannotTell: bad input; nothing was loaded.
        ValueError: an engine argument is not vLLM's, or would make states wrong.
        Exception: the engine did not start, for the reason given.
    """
    from specvllm_compat.engine_args import added
    from specvllm_compat.verification import inputs
    from specvllm_compat.verification.report import Report

    longest = inputs.check(model, layer_ids, max_model_len)
    with added(engine_args or {}):
        from specvllm_compat.verification import runs  # loads torch: bad input is known by now

        generator = runs.start(model, layer_ids, longest)
    try:
        found = runs.check(generator)
        about = runs.description(generator)
    finally:
        generator.executor.shutdown()  # Hugging Face needs the memory
    checks = found.checks
    if not vllm_only:
        from specvllm_compat.verification import huggingface

        checks += huggingface.check(model, generator.vllm_config.model_config, found)
    return Report(inputs.versions(), about, checks)
