"""Tiny models of many families, and what a release cannot run, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.06,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
DEEPSEEK: dict[str, Any] = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 64,
}
# The CPU kernel of RMSNorm misreads the strided inputs of this attention.
MLA_ARGS = {"compilation_config": {"custom_ops": ["none"]}}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A Hugging Face model type with what makes it tiny, and how vLLM has to be started for it."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "qwen2": Family(model_type="qwen2"),
    "qwen3": Family(model_type="qwen3", config={"head_dim": 64}),
    "qwen3_moe": Family(
        model_type="qwen3_moe", config={**EXPERTS, "head_dim": 64, "num_experts": 4}
    ),
    "mistral": Family(model_type="mistral", config={"head_dim": 64, "sliding_window": None}),
    "mixtral": Family(
        model_type="mixtral", config={"num_local_experts": 4, "sliding_window": None}
    ),
    "gemma2": Family(
        model_type="gemma2",
        config={
            "head_dim": 64,
            "hidden_act": "gelu_pytorch_tanh",
            "sliding_window": 32,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        config={
            "head_dim": 64,
            "sliding_window": 32,
            "sliding_window_pattern": 2,
            "tie_word_embeddings": True,
        },
    ),
    "phi3": Family(model_type="phi3"),
    "granite": Family(
        model_type="granite",
        config={"residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    ),
    "granitemoe": Family(
        model_type="granitemoe",
        config={
            "residual_multiplier": 0.22,
            "embedding_multiplier": 12.0,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "olmo2": Family(model_type="olmo2"),
    "gpt_neox": Family(model_type="gpt_neox", config={"rotary_pct": 1.0, "num_key_value_heads": 4}),
    "falcon": Family(
        model_type="falcon",
        config={"alibi": False, "new_decoder_architecture": False, "parallel_attn": True},
    ),
    "stablelm": Family(model_type="stablelm", config={"partial_rotary_factor": 0.5}),
    "exaone4": Family(
        model_type="exaone4",
        config={"head_dim": 64, "sliding_window": None, "sliding_window_pattern": None},
    ),
    "gpt_oss": Family(
        model_type="gpt_oss",
        config={"head_dim": 64, "sliding_window": 32, "num_local_experts": 4},
    ),
    "deepseek_v2": Family(
        model_type="deepseek_v2",
        config={**DEEPSEEK, "topk_method": "greedy"},
        engine_args=MLA_ARGS,
        variables={"VLLM_MLA_DISABLE": "1"},
    ),
    "deepseek_v3": Family(
        model_type="deepseek_v3",
        config={**DEEPSEEK, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
        engine_args=MLA_ARGS,
        variables={"VLLM_MLA_DISABLE": "1"},
    ),
    "transformers_backend": Family(model_type="llama", engine_args={"model_impl": "transformers"}),
}
