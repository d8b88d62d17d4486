"""Replace ``generate()`` by one that cannot mix up rows.

speculators' own returns results sorted by request id as text, holds at most 32 requests, counts
rows instead of labelling them, and never updates the scheduler. Ours runs the scheduler's loop as
vLLM does and returns, per prompt and in input order, one tensor per requested layer id.
``iter_generate()`` stands beside it, for more prompts than fit into memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from specvllm_compat.contract import has
from specvllm_compat.shim import Era, Shim, Upstream

_GENERATOR = "speculators.data_generation.vllm_hidden_states_generator"


def generate(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> list[dict[str, Any]]:
    """Per prompt ``{"input_ids", "hidden_states", "loss_mask"}``, in input order.

    ``hidden_states``: a list with one CPU tensor [tokens, hidden] in the model's dtype per
    requested layer id, in the requested order. ``input_ids``: int64 [tokens]. ``loss_mask``: None.

    Raises:
        ValueError, TypeError: a prompt is empty, too long, or not made of token ids of the model.
            Nothing was scheduled.
    """
    import inspect

    token_ids = inspect.signature(wrapped).bind(*args, **kwargs).arguments["token_ids"]
    prompts = list(_checked(instance, _batch(token_ids)))
    found = dict(_results(instance, prompts))
    return [found[index] for index in range(len(prompts))]


def iter_generate(
    self: Any, token_ids: Iterable[Sequence[int]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(index, result)`` as each prompt's states are complete, in whatever order.

    Results are those of ``generate()``; ``index`` counts the prompts. Prompts are taken one by one
    as the engine has room, and the engine computes while the caller handles a result: neither all
    prompts nor all results have to be in memory. ``close()`` ends it early.

    Raises:
        ValueError, TypeError: a prompt is empty, too long, or not made of token ids of the model.
            The results of the prompts before it have come back then.
    """
    return _results(self, _checked(self, token_ids))


def streaming(_: ModuleType) -> Any:
    """``iter_generate()``: the class has no method of that name."""
    return iter_generate


def _results(instance: Any, prompts: Iterable[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    from specvllm_compat.engine.assembly import engine_of
    from specvllm_compat.engine.run import run
    from vllm.sampling_params import SamplingParams

    call = instance._request_counter
    instance._request_counter += 1  # an id is never used twice
    request_type = sys.modules[_GENERATOR].Request
    in_work: dict[str, tuple[int, Any]] = {}

    def requests() -> Iterator[Any]:
        for index, prompt in enumerate(prompts):
            request_id = f"req_{call}_{index}"
            in_work[request_id] = (index, prompt)
            yield request_type(
                request_id=request_id,
                prompt_token_ids=prompt.tolist(),
                sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
                pooling_params=None,
                eos_token_id=instance.tokenizer.eos_token_id,
                arrival_time=0.0,
            )

    for request, layers in run(engine_of(instance.vllm_config), requests()):
        index, prompt = in_work.pop(request.request_id)
        states = _in_order(layers, instance.layer_ids)
        yield index, {"input_ids": prompt, "hidden_states": states, "loss_mask": None}


def _in_order(layers: dict[int, Any], layer_ids: list[int]) -> list[Any]:
    """One tensor per requested id; an id asked for again gets a tensor of its own."""
    return [
        layers[i].clone() if i in layer_ids[:position] else layers[i]
        for position, i in enumerate(layer_ids)
    ]


def _batch(token_ids: Any) -> Any:
    """The prompts of a call, or an error that says what a call takes."""
    import torch

    if isinstance(token_ids, torch.Tensor) and token_ids.dim() != 2:
        raise ValueError(f"token_ids must be [batch, tokens], not {tuple(token_ids.shape)}")
    if isinstance(token_ids, (str, bytes)) or not hasattr(token_ids, "__len__"):
        raise TypeError(
            f"token_ids must be a list of token id lists, not {type(token_ids).__name__}"
        )
    if len(token_ids) == 0:
        raise ValueError("token_ids cannot be empty")
    return token_ids


def _checked(instance: Any, prompts: Iterable[Any]) -> Iterator[Any]:
    """The prompts as int64 tensors, or an error that names the first bad one."""
    import torch

    model_config = instance.vllm_config.model_config
    vocabulary, longest = model_config.get_vocab_size(), model_config.max_model_len - 1
    for index, given in enumerate(prompts):
        if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
            raise TypeError(f"prompt {index} is {given!r:.80}: each prompt is a list of token ids")
        if len(given) == 0:
            raise ValueError(f"prompt {index} is empty")
        try:
            prompt = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"prompt {index} is not made of integers: {error}") from None
        whole = not (
            prompt.is_floating_point() or prompt.is_complex() or prompt.dtype == torch.bool
        )
        if not whole or prompt.dim() != 1:
            raise TypeError(
                f"prompt {index} must be one-dimensional and of integers, not {prompt.dtype} of "
                f"shape {tuple(prompt.shape)}"
            )
        if len(prompt) > longest:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens, this generator takes {longest}: cut it, "
                "or create the generator with a larger max_model_len"
            )
        low, high = int(prompt.min()), int(prompt.max())
        if low < 0 or high >= vocabulary:
            bad = low if low < 0 else high
            raise ValueError(
                f"prompt {index} holds token id {bad}, outside the vocabulary [0, {vocabulary - 1}]"
            )
        yield prompt.to(device="cpu", dtype=torch.long, copy=True)


SHIM = Shim(
    does="Return every prompt's states, in input order and in the requested layers.",
    module=_GENERATOR,
    upstream=Upstream(
        change="https://github.com/vllm-project/speculators/pull/433",
        first_release="0.11.0",
        delete_when="no supported speculators has this class (0.5.0 removed it unrepaired)",
    ),
    eras=(
        Era(
            since="0.11.0",
            probe=has("vllm.v1.core.sched.scheduler:Scheduler.update_from_output")
            & has("vllm.sampling_params:SamplingParams"),
            adapt={"VllmHiddenStatesGenerator.generate": generate},
            provide={"VllmHiddenStatesGenerator.iter_generate": streaming},
        ),
    ),
)
