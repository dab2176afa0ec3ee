"""Small random checkpoints of both model types, the same bits everywhere."""

import zlib
from typing import Any

import numpy as np

from dsa_verify.model.checkpoint import shapes_of
from dsa_verify.model.model_config import ModelConfig, parse_config

SEED = 9
"""The first from 7 on for which no choice of the pinned prompts hangs on a tie: with few heads many scores are 0."""

_COMMON = {
    "vocab_size": 24, "hidden_size": 48, "intermediate_size": 40, "moe_intermediate_size": 24,
    "num_attention_heads": 3, "num_key_value_heads": 3, "n_shared_experts": 2, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "kv_lora_rank": 20, "q_lora_rank": 28, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 10, "index_topk": 6, "index_head_dim": 18, "index_n_heads": 4, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7, "norm_topk_prob": True, "hidden_act": "silu", "max_position_embeddings": 512,
}  # fmt: skip
DOCUMENTS: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {
        **_COMMON, "model_type": "glm_moe_dsa", "num_hidden_layers": 4, "rms_norm_eps": 1e-5,
        "indexer_types": ["full", "shared", "full", "shared"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "deepseek_v32": {
        **_COMMON, "model_type": "deepseek_v32", "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "n_group": 4,
        "topk_group": 2,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
        },
    },
}  # fmt: skip
"""config.json of each type; GLM's layers share selections, DeepSeek's all choose for themselves."""


def uniform(name: str, *shape: int) -> np.ndarray:
    """f64[shape] in [-1, 1), one stream a name; RandomState's stream is frozen (NEP 19)."""
    return np.random.RandomState([SEED, zlib.crc32(name.encode())]).random_sample(shape) * 2.0 - 1.0


def weights_of(kind: str, config: ModelConfig | None = None) -> dict[str, np.ndarray]:
    """Float32 weights of a document's checkpoint, or of `config`'s; unit gain for matrices, norms around 1."""
    found = {}
    for name, shape in shapes_of(config or parse_config(DOCUMENTS[kind], kind)).items():
        values = uniform(name, *shape)
        if len(shape) == 2:
            values *= (3.0 / shape[1]) ** 0.5 * (2.0 if "q_b_proj" in name or "embed" in name else 1.0)
        else:
            values = 0.3 * values + (0.0 if name.endswith("bias") else 1.0)
        found[name] = values.astype(np.float32)
    return found
