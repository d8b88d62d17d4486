"""The user's own vLLM and speculators, through the shims of this package."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specvllm_compat.extraction.errors import BadInput
from specvllm_compat.extraction.job import Produce, States
from specvllm_compat.extraction.preprocess import BadRow, Sample

log = logging.getLogger("specvllm_compat")

_CLOSED = ("model", "max_model_len", "max_num_batched_tokens")


def engine_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """These, over what was configured before, checked against the installed vLLM.

    Raises:
        BadInput: it has no such argument, or states would be wrong, or an option of ours sets it.
    """
    from specvllm_compat import engine_args

    if taken := [name for name in given if name in _CLOSED]:
        raise BadInput(f"--engine-arg {taken[0]}: there is an option of its own for this")
    try:
        with engine_args.added(given) if given else contextlib.nullcontext():
            return engine_args.current()
    except ValueError as error:
        raise BadInput(str(error)) from None


@contextlib.contextmanager
def engine(
    model: str,
    layer_ids: Sequence[int],
    max_model_len: int,
    batch_tokens: int,
    arguments: Mapping[str, Any],
) -> Iterator[Produce]:
    """A generator with the model loaded; its workers end with the block."""
    from specvllm_compat import engine_args

    try:
        from speculators.data_generation import vllm_hidden_states_generator as module
    except ImportError as error:
        raise BadInput(f"the engine needs speculators, 0.3 or 0.4: {error}") from error
    with engine_args.added({**arguments, "max_num_batched_tokens": batch_tokens}):
        generator = module.VllmHiddenStatesGenerator(
            model, layer_ids=list(layer_ids), max_model_len=max_model_len
        )
    try:
        yield producing(generator)
    finally:
        generator.executor.shutdown()


def producing(generator: Any) -> Produce:
    """One call of the generator per group.

    If states of one sample are no numbers, the call fails as a whole. What it has not given yet is
    then computed sample by sample: those that fail alone are bad, and all others are the same in
    every run.
    """
    from specvllm_compat.engine.families import CaptureError

    def states(prompts: list[list[int]]) -> Iterator[tuple[int, Any]]:
        for at, result in generator.iter_generate(prompts):
            yield at, result["hidden_states"]

    def produce(_: list[int], samples: list[Sample]) -> Iterator[tuple[int, States]]:
        prompts = [tokens.tolist() for tokens, _ in samples]
        missing = set(range(len(prompts)))
        try:
            for at, found in states(prompts):
                missing.remove(at)
                yield at, found
        except CaptureError as error:
            log.warning("what is left of a group is computed sample by sample: %s", error)
            for at in sorted(missing):
                try:
                    yield at, dict(states([prompts[at]]))[0]
                except CaptureError as alone:
                    yield at, BadRow(str(alone))

    return produce
