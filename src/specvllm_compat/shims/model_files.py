"""Load the tokenizer, and find the number of layers, of every model that the engine can load.

speculators trusts a model's own code when it loads the config and the engine, but not for the
tokenizer, which fails for Kimi-K2 and others. It looks for the number of layers in the config and
in its ``text_config`` only, where some multimodal models have neither.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from specvllm_compat.contract import accepts
from specvllm_compat.shim import Era, Replacing, Shim, Upstream

_AUTO = "transformers.models.auto"
_NESTED = ("thinker_config", "language_config", "llm_config")


def tokenizer_with_its_own_code(module: ModuleType) -> Any:
    """``AutoTokenizer``, with ``trust_remote_code`` as everything else of the model has it."""
    own = module.AutoTokenizer
    return Replacing(own, from_pretrained=partial(own.from_pretrained, trust_remote_code=True))


def config_of_the_language_model(module: ModuleType) -> Any:
    """``AutoConfig``, answering with the config that has the number of layers."""
    own = module.AutoConfig

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        config = own.from_pretrained(*args, **kwargs)
        while not (hasattr(config, "num_hidden_layers") or hasattr(config, "text_config")):
            nested = next((name for name in _NESTED if hasattr(config, name)), None)
            if nested is None:
                break  # speculators says what it misses
            config = getattr(config, nested)
        return config

    return Replacing(own, from_pretrained=from_pretrained)


SHIM = Shim(
    does="Load tokenizers that need trust_remote_code; find the layers of nested configs.",
    module="speculators.data_generation.vllm_hidden_states_generator",
    provider="transformers",
    upstream=Upstream(
        change="https://github.com/vllm-project/speculators/pull/433",
        first_release="4.56",
        delete_when="no supported speculators has this class (0.5.0 removed it unrepaired)",
    ),
    eras=(
        Era(
            since="4.56",
            probe=accepts(
                f"{_AUTO}.tokenization_auto:AutoTokenizer.from_pretrained",
                "pretrained_model_name_or_path",
            )
            & accepts(
                f"{_AUTO}.configuration_auto:AutoConfig.from_pretrained",
                "pretrained_model_name_or_path",
            ),
            provide={
                "AutoTokenizer": tokenizer_with_its_own_code,
                "AutoConfig": config_of_the_language_model,
            },
        ),
    ),
)
