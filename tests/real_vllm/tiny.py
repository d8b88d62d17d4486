"""Tiny random models, made on the spot, and Hugging Face's own hidden states of them.

A layer id is the output of that decoder layer before the final norm, as in speculators. Works with
transformers 4.57 and 5.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

transformers.utils.logging.disable_progress_bar()

SENTENCES = [
    "A draft model proposes a few tokens and the large model accepts the ones it agrees with.",
    "Hidden states of three layers are enough to predict what the next layer is going to say.",
    "The longer the prompt, the more often the scheduler has to cut it into several chunks.",
    "Nobody reads the release notes until the import statement fails on a Friday evening.",
    "Two prompts with the same beginning must still give one row for every single token.",
    "Rain fell on the harbour all night, and in the morning the boats were full of leaves.",
    "If the numbers differ in the sixth decimal place, somebody will ask why they differ.",
    "She counted the tokens twice, wrote the sum on the whiteboard, and went to lunch.",
]


def save_tokenizer(folder: Path, vocab: int) -> None:
    """Train a byte-level BPE tokenizer of at most ``vocab`` entries and save it into ``folder``."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        SENTENCES, vocab_size=vocab, min_frequency=1, special_tokens=["<s>", "</s>"]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    ).save_pretrained(folder)


def make_llama(
    folder: Path,
    *,
    layers: int = 6,
    hidden: int = 256,
    vocab: int = 512,
    heads: int = 4,
    kv_heads: int = 2,
    max_position_embeddings: int = 2048,
    seed: int = 0,
) -> Path:
    """Save a random float32 Llama with a tokenizer into ``folder``."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=max_position_embeddings,
        # Wide enough that every layer changes the states visibly.
        initializer_range=0.06,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,  # its embedding would be zero, and a relative error of it undefined
        tie_word_embeddings=False,
        dtype="float32",
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    save_tokenizer(folder, vocab)
    return folder


def prompts(count: int, longest: int, *, vocab: int = 512, seed: int = 0) -> list[list[int]]:
    """Random prompts of 1 to ``longest`` tokens; short ones are as likely as long ones."""
    draw = random.Random(seed)
    lengths = [draw.choice([1, 2, 3, draw.randint(4, longest)]) for _ in range(count)]
    return [[draw.randrange(vocab) for _ in range(length)] for length in lengths]


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The decoder layers of a Hugging Face model, first to last."""
    wanted = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise LookupError(f"{type(model).__name__} has no list of {wanted} decoder layers")


def auto_class(config: Any) -> Any:
    """What makes a model that writes text out of this config."""
    in_text = type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if in_text else AutoModelForImageTextToText


@cache
def huggingface(folder: Path) -> torch.nn.Module:
    """The Hugging Face model in ``folder``: float32, eager attention."""
    model: torch.nn.Module = auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@cache
def every_layer(folder: Path, token_ids: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The outputs of all decoder layers for one unpadded prompt, each [tokens, hidden]."""
    model = huggingface(folder)
    outputs: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        outputs.append(hidden.reshape(-1, hidden.shape[-1]).clone())

    hooks = [layer.register_forward_hook(keep) for layer in decoder_layers(model)]
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([token_ids]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(outputs)


def reference(folder: Path, token_ids: list[int], layer_ids: list[int]) -> list[torch.Tensor]:
    """Hugging Face's states of one prompt, one [tokens, hidden] tensor per requested layer."""
    states = every_layer(folder, tuple(token_ids))
    return [states[layer] for layer in layer_ids]


def forget() -> None:
    """Drop the models and states that are kept for further comparisons."""
    huggingface.cache_clear()
    every_layer.cache_clear()
