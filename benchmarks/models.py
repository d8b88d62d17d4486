"""Random models, made on the spot: one that computes much per state, one that does not."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "real_vllm"))

VOCABULARY = 512


@dataclass(frozen=True)
class Shape:
    """A Llama's shape, and the layers that are captured."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    layer_ids: tuple[int, ...]

    def states_per_token(self, dtype: str) -> int:
        """Bytes."""
        return len(self.layer_ids) * self.hidden * {"float32": 4, "bfloat16": 2}[dtype]


SHAPES = {
    "compute-heavy": Shape(12, 1024, 2048, 16, (2, 6, 9, 11)),
    "states-heavy": Shape(6, 4096, 64, 2, (1, 2, 3, 5)),
}


def make(folder: Path, shape: Shape, dtype: str) -> Path:
    """Save a random Llama of this shape, and a tokenizer, into ``folder``."""
    import tiny
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=max(1, shape.heads // 2),
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        dtype=dtype,
    )
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    tiny.save_tokenizer(folder, VOCABULARY)
    return folder
