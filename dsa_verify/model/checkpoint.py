"""Reads and writes the weights of a Hugging Face checkpoint directory; every name and shape is checked."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.model.model_config import ModelConfig

Weights = Mapping[str, np.ndarray]


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a checkpoint by its name; matrices are [out, in]."""
    c = config
    found = {
        "model.embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
        "lm_head.weight": (c.vocab_size, c.hidden_size),
    }
    for layer in range(c.num_hidden_layers):
        at = f"model.layers.{layer}."
        found |= {at + name: shape for name, shape in _attention(c, layer).items()}
        found |= {at + "mlp." + name: shape for name, shape in _mlp(c, layer).items()}
    return found


def _attention(c: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    query, heads = c.qk_nope_head_dim + c.qk_rope_head_dim, c.num_attention_heads
    found = {
        "input_layernorm.weight": (c.hidden_size,),
        "post_attention_layernorm.weight": (c.hidden_size,),
        "self_attn.q_a_proj.weight": (c.q_lora_rank, c.hidden_size),
        "self_attn.q_a_layernorm.weight": (c.q_lora_rank,),
        "self_attn.q_b_proj.weight": (heads * query, c.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size),
        "self_attn.kv_a_layernorm.weight": (c.kv_lora_rank,),
        "self_attn.kv_b_proj.weight": (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank),
        "self_attn.o_proj.weight": (c.hidden_size, heads * c.v_head_dim),
    }
    if c.indexer_types[layer] == "full":
        found |= {
            "self_attn.indexer.wq_b.weight": (c.index_n_heads * c.index_head_dim, c.q_lora_rank),
            "self_attn.indexer.wk.weight": (c.index_head_dim, c.hidden_size),
            "self_attn.indexer.k_norm.weight": (c.index_head_dim,),
            "self_attn.indexer.k_norm.bias": (c.index_head_dim,),
            "self_attn.indexer.weights_proj.weight": (c.index_n_heads, c.hidden_size),
        }
    return found


def _mlp(c: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    def gated(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        into, back = (width, c.hidden_size), (c.hidden_size, width)
        return {f"{prefix}{name}_proj.weight": shape for name, shape in (("gate", into), ("up", into), ("down", back))}

    if c.mlp_layer_types[layer] == "dense":
        return gated("", c.intermediate_size)
    found = {"gate.weight": (c.n_routed_experts, c.hidden_size), "gate.e_score_correction_bias": (c.n_routed_experts,)}
    found |= gated("shared_experts.", c.moe_intermediate_size * c.n_shared_experts)
    for expert in range(c.n_routed_experts):
        found |= gated(f"experts.{expert}.", c.moe_intermediate_size)
    return found


def read_weights(folder: Path, config: ModelConfig) -> dict[str, np.ndarray]:
    """Every tensor that the configuration asks for, in its stored dtype.

    Tensors of further layers (multi-token prediction) and of quantisation are left alone. Raises `ConfigError` for a
    missing file, a damaged file, a missing tensor, and a shape that contradicts config.json.
    """
    wanted, found = shapes_of(config), {}
    for path in _files(folder):
        found.update(_tensors(path, wanted))
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise ConfigError(
            f"{folder} lacks {len(missing)} of {len(wanted)} tensors that its config.json asks for; first "
            f"{missing[0]}, {list(wanted[missing[0]])}"
        )
    for name, shape in wanted.items():
        if found[name].shape != shape:
            raise ConfigError(
                f"{folder}: {name} has shape {list(found[name].shape)}, expected {list(shape)} from config.json"
            )
    return found


def _files(folder: Path) -> list[Path]:
    """The safetensors files, those of the index if there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"cannot read {index}: {error}; expected a weight_map of tensors to files") from error
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ConfigError(
                f"{folder} lacks {absent[0]}, which model.safetensors.index.json names; download it again"
            )
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder} has no *.safetensors file; expected a Hugging Face checkpoint directory")
    return files


def _tensors(path: Path, wanted: Mapping[str, object]) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401 (NumPy knows bfloat16 by it)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name in wanted}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}; the file is damaged or was cut off, download it again"
        ) from error


def write_checkpoint(folder: Path, document: Mapping[str, object], weights: Weights) -> None:
    """Write config.json and model.safetensors into a directory, made if needed."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, folder / "model.safetensors")
