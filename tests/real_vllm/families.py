"""Tiny models of many families, and what a release cannot run, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specvllm_compat.shim import installed


def release() -> str:
    """The vLLM that is installed here, as three numbers."""
    return ".".join(map(str, installed("vllm").number[:3]))


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
# The CPU kernel of RMSNorm misreads strided inputs: norms inside of attention come out wrong.
NO_CUSTOM_OPS = {"compilation_config": {"custom_ops": ["none"]}}

UNKNOWN_TO_TRANSFORMERS = dict.fromkeys(
    ("0.12.0", "0.16.0", "0.20.2"), "Unrecognized model identifier"
)
# Their linear layers on a CPU take each weight for a matrix, a convolution's too.
NO_CONVOLUTIONS_ON_CPU = dict.fromkeys(("0.12.0", "0.16.0", "0.20.2"), "too many values to unpack")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A Hugging Face model type, the config that makes it tiny, and how vLLM has to be started."""

    model_type: str
    config: dict[str, Any] = field(default_factory=lambda: BASE)
    engine_args: dict[str, Any] = field(default_factory=dict)
    by_auxiliary_outputs: bool = False
    """Read it as if its layers put out no states."""
    bfloat16_in: tuple[str, ...] = ()
    """Releases whose CPU kernels know this family in bfloat16 only."""
    architecture: str | None = None
    """vLLM's name of it, where transformers has another."""
    wrapper: dict[str, Any] | None = None
    """The config of a multimodal model that holds this one, which transformers doesn't have."""
    files: dict[str, str | dict[str, Any]] = field(default_factory=dict)
    """Further files of the model folder, as text or JSON."""
    fails: dict[str, str] = field(default_factory=dict)
    """Release -> what the error says there: why this release cannot run this family on a CPU."""
    differs: dict[str, float] = field(default_factory=dict)
    """Release -> how far vLLM itself is from Hugging Face: its auxiliary outputs are as far."""


# A window that no prompt fills: vLLM's is one token longer than Hugging Face's from 0.30 on.
COHERE2 = {"head_dim": 64, "sliding_window": 256, "tie_word_embeddings": True}
MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
}
NO_IMAGES = {"limit_mm_per_prompt": {"image": 0, "video": 0}}
QWEN_VL_FILES: dict[str, str | dict[str, Any]] = {
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    },
}
KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
    "vision_config": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2},
    "media_placeholder_token_id": 5,
}
KIMI_FILES: dict[str, str | dict[str, Any]] = {
    "configuration_kimi_k25.py": """
from transformers import DeepseekV3Config, PretrainedConfig


class KimiK25Config(PretrainedConfig):
    model_type = "kimi_k25"

    def __init__(self, text_config=None, vision_config=None, **kwargs):
        self.text_config = DeepseekV3Config(**(text_config or {}))
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        super().__init__(**kwargs)
""",
    "image_processing_kimi_k25.py": """
from transformers.image_processing_utils import BaseImageProcessor


class KimiK25ImageProcessor(BaseImageProcessor):
    num_frames_per_chunk = 4

    def __init__(self, media_proc_cfg=None, **kwargs):
        super().__init__(**kwargs)

    def media_tokens_calculator(self, media):
        return 1
""",
    "preprocessor_config.json": {
        "media_proc_cfg": {
            "merge_kernel_size": 2,
            "temporal_merge_kernel_size": 4,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
        "auto_map": {"AutoImageProcessor": "image_processing_kimi_k25.KimiK25ImageProcessor"},
        "image_processor_type": "KimiK25ImageProcessor",
    },
}

FAMILIES: dict[str, Family] = {
    "llama": Family(model_type="llama"),
    "llama_by_auxiliary_outputs": Family(
        model_type="llama",
        by_auxiliary_outputs=True,
        # There is none after the last layer, so nobody knows whose they are.
        fails=dict.fromkeys(("0.12.0", "0.16.0"), "decoder layer 0 was not called as a module"),
    ),
    "qwen2": Family(model_type="qwen2"),
    "qwen3": Family(model_type="qwen3", config={**BASE, "head_dim": 64}, engine_args=NO_CUSTOM_OPS),
    "qwen3_moe": Family(
        model_type="qwen3_moe",
        config={**BASE, **EXPERTS, "head_dim": 64, "num_experts": 4},
        engine_args=NO_CUSTOM_OPS,
    ),
    "mistral": Family(
        model_type="mistral", config={**BASE, "head_dim": 64, "sliding_window": None}
    ),
    "mixtral": Family(
        model_type="mixtral", config={**BASE, "num_local_experts": 4, "sliding_window": None}
    ),
    "gemma": Family(
        model_type="gemma", config={**BASE, "head_dim": 64, "tie_word_embeddings": True}
    ),
    "gemma2": Family(
        model_type="gemma2",
        config={
            **BASE,
            "head_dim": 64,
            "hidden_act": "gelu_pytorch_tanh",
            "sliding_window": 32,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        config={
            **BASE,
            "head_dim": 64,
            "sliding_window": 32,
            "sliding_window_pattern": 2,
            "tie_word_embeddings": True,
        },
        fails={"0.11.0": "is not supported with sliding window (CPU backend)"},
    ),
    "phi3": Family(model_type="phi3"),
    # Hugging Face takes the long factors for longer prompts, vLLM for a larger max_model_len.
    "phi3_longrope": Family(
        model_type="phi3",
        config={
            **BASE,
            "original_max_position_embeddings": 200,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0 + n / 64 for n in range(32)],
                "long_factor": [2.0 + n / 8 for n in range(32)],
            },
        },
    ),
    "phimoe": Family(
        model_type="phimoe",
        architecture="PhiMoEForCausalLM",
        config={
            **BASE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "granite": Family(
        model_type="granite",
        config={**BASE, "residual_multiplier": 0.22, "embedding_multiplier": 12.0},
    ),
    "granitemoe": Family(
        model_type="granitemoe",
        config={
            **BASE,
            "residual_multiplier": 0.22,
            "embedding_multiplier": 12.0,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "olmo2": Family(model_type="olmo2", engine_args=NO_CUSTOM_OPS),
    "olmoe": Family(
        model_type="olmoe",
        config={**BASE, "num_experts": 4, "num_experts_per_tok": 2},
        engine_args=NO_CUSTOM_OPS,
    ),
    "cohere": Family(model_type="cohere", config={**BASE, "tie_word_embeddings": True}),
    "cohere2": Family(
        model_type="cohere2",
        config={**BASE, **COHERE2},
    ),
    "cohere2_moe": Family(
        model_type="cohere2_moe",
        config={**BASE, **COHERE2, "num_experts": 4},
        fails=UNKNOWN_TO_TRANSFORMERS,
    ),
    "glm4": Family(model_type="glm4", config={**BASE, "head_dim": 64}),
    "glm4_moe": Family(
        model_type="glm4_moe",
        config={
            **BASE,
            **EXPERTS,
            "head_dim": 64,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "hunyuan": Family(
        model_type="hunyuan_v1_dense",
        config={**BASE, "head_dim": 64, "use_qk_norm": True},
        engine_args=NO_CUSTOM_OPS,
    ),
    "ernie4_5_moe": Family(
        model_type="ernie4_5_moe",
        config={**BASE, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 128},
    ),
    "afmoe": Family(
        model_type="afmoe",
        config={
            **BASE,
            **EXPERTS,
            "head_dim": 64,
            "num_experts": 4,
            "num_local_experts": 4,
            "num_dense_layers": 1,
            "sliding_window": 32,
            "global_attn_every_n_layers": 2,
            "mup_enabled": True,
        },
        engine_args=NO_CUSTOM_OPS,
        fails={
            **dict.fromkeys(("0.12.0", "0.16.0"), "Unrecognized model identifier"),
            "0.32.0": "'AfmoeConfig' object has no attribute",  # transformers 5.24
        },
    ),
    "hyperclovax": Family(
        model_type="hyperclovax",
        config={**BASE, "residual_multiplier": 0.22},
        # transformers 5.19 cannot load what it saved.
        fails={
            **UNKNOWN_TO_TRANSFORMERS,
            "0.26.0": "argument of type 'NoneType' is not iterable",
        },
    ),
    "gpt2": Family(model_type="gpt2", config={**BASE, "n_positions": 512, "n_inner": 512}),
    "opt": Family(model_type="opt", config={**BASE, "ffn_dim": 512, "word_embed_proj_dim": 256}),
    "starcoder2": Family(model_type="starcoder2", config={**BASE, "sliding_window": None}),
    "gpt_neox": Family(
        model_type="gpt_neox", config={**BASE, "rotary_pct": 1.0, "num_key_value_heads": 4}
    ),
    "falcon": Family(
        model_type="falcon",
        config={
            **BASE,
            "alibi": False,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "num_kv_heads": 4,
            "num_key_value_heads": 4,
            "multi_query": False,
        },
    ),
    "stablelm": Family(model_type="stablelm", config={**BASE, "partial_rotary_factor": 0.5}),
    "exaone4": Family(
        model_type="exaone4",
        config={**BASE, "head_dim": 64, "sliding_window": 32, "sliding_window_pattern": 2},
        engine_args=NO_CUSTOM_OPS,
    ),
    "gpt_oss": Family(
        model_type="gpt_oss",
        config={**BASE, "head_dim": 64, "sliding_window": 32, "num_local_experts": 4},
        bfloat16_in=("0.12.0", "0.16.0", "0.20.2", "0.26.0"),
    ),
    "llama4": Family(
        model_type="llama4_text",
        config={
            **BASE,
            "head_dim": 64,
            "intermediate_size": 128,
            "intermediate_size_mlp": 512,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 128,
        },
        fails=dict.fromkeys(("0.12.0", "0.16.0"), "assert not apply_router_weight_on_input"),
    ),
    "deepseek_v2": Family(
        model_type="deepseek_v2",
        config={**BASE, **DEEPSEEK, "topk_method": "greedy"},
        engine_args=NO_CUSTOM_OPS,
        differs={"0.20.2": 2e-3},  # from the first layer with experts on
    ),
    "deepseek_v3": Family(
        model_type="deepseek_v3",
        config={**BASE, **DEEPSEEK, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
        engine_args=NO_CUSTOM_OPS,
    ),
    "kimi_k25": Family(
        model_type="deepseek_v3",
        config={**BASE, **DEEPSEEK, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
        wrapper=KIMI,
        files=KIMI_FILES,
        engine_args={**NO_CUSTOM_OPS, "limit_mm_per_prompt": {"vision_chunk": 0}},
        fails={"0.12.0": "are not supported for now"},
    ),
    "jamba": Family(
        model_type="jamba",
        config={
            **BASE,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
        },
        fails={
            **NO_CONVOLUTIONS_ON_CPU,
            "0.26.0": "Expected a.stride(-1) == 1",
            "0.32.0": "no attribute 'selective_scan_fwd'",
        },
    ),
    "granitemoehybrid": Family(
        model_type="granitemoehybrid",
        config={
            **BASE,
            **MAMBA2,
            "residual_multiplier": 0.22,
            "embedding_multiplier": 12.0,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 128,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
        },
        fails={
            **NO_CONVOLUTIONS_ON_CPU,
            "0.26.0": "module 'triton' has no attribute 'next_power_of_2'",
        },
    ),
    "falcon_h1": Family(
        model_type="falcon_h1",
        config={**BASE, **MAMBA2, "mamba_d_ssm": 512, "head_dim": 64},
        fails={
            **NO_CONVOLUTIONS_ON_CPU,
            "0.26.0": "module 'triton' has no attribute 'next_power_of_2'",
        },
    ),
    "lfm2": Family(
        model_type="lfm2",
        config={
            **BASE,
            "block_auto_adjust_ff_dim": False,
            "conv_dim": 256,
            "conv_dim_out": 256,
            "block_dim": 256,
            "block_ff_dim": 512,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        },
        engine_args=NO_CUSTOM_OPS,
        fails=NO_CONVOLUTIONS_ON_CPU,
    ),
    "qwen2_5_vl": Family(
        model_type="qwen2_5_vl",
        config={
            "text_config": {
                **BASE,
                "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
            },
            "vision_config": {
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
                "out_hidden_size": 256,
                "fullatt_block_indexes": [1],
            },
            "tie_word_embeddings": False,
        },
        engine_args=NO_IMAGES,
        files=QWEN_VL_FILES,
    ),
    "qwen3_vl": Family(
        model_type="qwen3_vl",
        config={
            "text_config": {
                **BASE,
                "head_dim": 64,
                "rope_scaling": {"rope_type": "default", "mrope_section": [16, 8, 8]},
            },
            "vision_config": {
                "depth": 3,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_heads": 2,
                "out_hidden_size": 256,
                "deepstack_visual_indexes": [0, 1],
            },
            "tie_word_embeddings": False,
        },
        engine_args={**NO_CUSTOM_OPS, **NO_IMAGES},
        files=QWEN_VL_FILES,
    ),
    "transformers_backend": Family(model_type="llama", engine_args={"model_impl": "transformers"}),
}
