"""Model families: where the decoder layers are, and what they put out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of families are asked for where there is no torch
    import torch

# The first output of these layers is the whole state, and no residual is to be added to it. By the
# file that defines them, or by the name of the class where a file has layers of both kinds.
# https://github.com/vllm-project/vllm/tree/v0.32.0/vllm/model_executor/models (0.11.0 ... 0.33.0)
HIDDEN_IS_FULL = frozenset(
    (
        "cohere2_moe",
        "cohere_compass",
        "commandr",
        "exaone4",
        "granitemoehybrid",
        "hyperclovax",
        "minicpm",
        "muse_glimmer",
        "phimoe",
        "stablelm",
        "ChameleonSwinDecoderLayer",
        "Molmo2DecoderNormAfterLayer",
        "MolmoDecoderNormAfterLayer",
    )
)
# What layers of Hugging Face return besides their states: attention weights, router logits.
HUGGING_FACE = ("transformers.", "transformers_modules.")
# Layers whose outputs are not the states, in models that put them out as auxiliary outputs: several
# streams, or what the next layer is to finish. By the folder that defines them.
AUXILIARY = frozenset(("beam", "deepseek_v4", "deepseek_v41", "glm5next"))
# The same where auxiliary outputs are not the states either (they are not summed over the ranks of
# tensor parallelism), or are not known to be, or where there are none.
UNREADABLE = frozenset(
    (
        "deepseek_v32",
        "dots3_note",
        "hy_v4",
        "inkling",
        "kimi_k3",
        "minimax_m3",
        "muse_spark",
        "qwen4_exp",
    )
)
# In float16 these divide all states by a factor, so that they don't overflow.
SCALED_IN_FLOAT16 = frozenset(("AXK1", "deepseek_v2", "openpangu"))


class CaptureError(RuntimeError):
    """States could not be attributed to their tokens; nothing of the step is used."""


def decoder_layers(model: torch.nn.Module, model_config: Any) -> torch.nn.ModuleList:
    """The language model's decoder layers: the outermost list as long as the config says.

    Raises:
        CaptureError: there is none, or two that could be meant.
    """
    from torch.nn import ModuleList

    count = model_config.hf_text_config.num_hidden_layers
    root = model
    if hasattr(model, "get_language_model"):
        try:
            root = model.get_language_model()
        except NotImplementedError:
            root = model
    level = [root]
    while level:
        found = [m for m in level if isinstance(m, ModuleList) and len(m) == count]
        if len(found) == 1:
            return found[0]
        if found:
            break
        level = [child for module in level for child in module.children()]
    raise CaptureError(
        f"{type(model).__name__} has {'several lists' if level else 'no list'} of {count} modules: "
        "which of them are its decoder layers is not known"
    )


def refuse_architecture(model_config: Any) -> None:
    """Raise CaptureError for a family that cannot be read, before its weights are loaded."""
    from vllm.model_executor.models import ModelRegistry

    for architecture in model_config.architectures:
        # Models of other packages are registered as classes, without the name of a module.
        entry = ModelRegistry.models.get(architecture)
        _refuse(architecture, getattr(entry, "module_name", ""))


def refuse_layer(layer: torch.nn.Module, dtype: torch.dtype) -> None:
    """Raise CaptureError for a layer whose outputs are not its states."""
    from torch import float16

    name, module_name = type(layer).__name__, type(layer).__module__
    _refuse(name, module_name)
    factor = getattr(layer, "routed_scaling_factor", 1.0)
    if dtype == float16 and factor != 1.0 and _in(SCALED_IN_FLOAT16, module_name):
        raise CaptureError(
            f"{name}: in float16 vLLM divides this family's states by its routed_scaling_factor "
            f"({factor}). Set dtype to bfloat16 in the engine arguments."
        )


def _refuse(what: str, module_name: str) -> None:
    if names := _in(UNREADABLE, module_name):
        raise CaptureError(
            f"{what} ({', '.join(names)}): the outputs of this family's layers are not its hidden "
            "states, and no other source is known for it yet"
        )


def needs_auxiliary_outputs(layer: torch.nn.Module) -> bool:
    """True if the states are no sum of what the layer puts out."""
    return bool(_in(AUXILIARY, type(layer).__module__))


def _in(families: frozenset[str], module_name: str) -> frozenset[str]:
    return families.intersection(module_name.split("."))


def is_here(layer: torch.nn.Module) -> bool:
    """False for the placeholders of layers that another pipeline stage runs."""
    return type(layer).__name__ != "PPMissingLayer"


def hidden_is_full(layer: torch.nn.Module) -> bool:
    """True if nothing that the layer returns besides its hidden states is to be added to them."""
    kind = type(layer)
    if kind.__module__.startswith(HUGGING_FACE):
        return True
    # From 0.33.0 on, Cohere's experts leave the addition to the next norm if that can do it.
    if getattr(layer, "uses_rms_norm", False):
        return False
    return bool(HIDDEN_IS_FULL.intersection([kind.__name__, *kind.__module__.split(".")]))


def summands(output: Any, full: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a layer put out: its hidden states, and the residual to be added to them, if any.

    Raises:
        CaptureError: the output has a form that is not known.
    """
    from torch import Tensor

    hidden, *others = output if isinstance(output, tuple) else (output,)
    if full and isinstance(hidden, Tensor) and hidden.dim() == 3 and len(hidden) == 1:
        hidden = hidden[0]  # of layers of Hugging Face; elsewhere the first could be one of streams
    residual, *further = [None] if full or not others else others
    alike = isinstance(hidden, Tensor) and (
        residual is None or (isinstance(residual, Tensor) and residual.shape == hidden.shape)
    )
    if not alike or any(isinstance(item, Tensor) for item in further):
        form = [str(tuple(getattr(item, "shape", ())) or type(item)) for item in (hidden, *others)]
        raise CaptureError(f"a decoder layer put out {', '.join(form)}: no form that is known")
    return hidden, residual
