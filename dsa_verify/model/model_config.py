"""Reads a checkpoint's config.json: sizes, layer kinds, rotary frequencies; refuses by name what it cannot use."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dsa_verify.errors import ConfigError
from dsa_verify.shapes import IndexerConvention

ROPE_OF_INDEXER: Mapping[str, Literal["interleaved", "half_split"]] = {
    "glm_moe_dsa": "interleaved",
    "deepseek_v32": "half_split",
}
"""Model types that can be loaded. MLA's own heads rotate interleaved in both."""

LATENT_NORM_EPS = 1e-6
"""Of the norms of the query and key latents, whatever `rms_norm_eps` says: the published code leaves the default."""

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "n_shared_experts", "n_routed_experts", "num_experts_per_tok", "kv_lora_rank",
    "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_topk", "index_head_dim",
    "index_n_heads",
)  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """A decoder, with the names of config.json.

    indexer_types: "full" (has an indexer) or "shared" (reuses the selection of the last full layer), one a layer.
    mlp_layer_types: "dense" or "sparse" (mixture of experts), one a layer.
    rotary: radians per position of each pair of the rotary part. sm_scale: softmax scale, YaRN's factor included.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    n_shared_experts: int
    n_routed_experts: int
    num_experts_per_tok: int
    kv_lora_rank: int
    q_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_topk: int
    index_head_dim: int
    index_n_heads: int
    indexer_types: tuple[str, ...]
    mlp_layer_types: tuple[str, ...]
    rotary: tuple[float, ...]
    sm_scale: float
    rms_norm_eps: float = 1e-5
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    eos_token_ids: tuple[int, ...] = ()
    max_position_embeddings: int = 1 << 30

    @property
    def indexer(self) -> IndexerConvention:
        """How this model's indexers rotate and normalise."""
        rope = ROPE_OF_INDEXER[self.model_type]
        return IndexerConvention(rope, self.qk_rope_head_dim, norm_eps=1e-6, frequencies=self.rotary)


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a checkpoint directory. Raises `ConfigError`."""
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}; expected the config.json of a Hugging Face checkpoint"
        ) from error
    return parse_config(document, str(path))


def parse_config(document: Mapping[str, Any], where: str) -> ModelConfig:
    """The configuration that a config.json document describes. Raises `ConfigError` naming the field and `where`."""
    kind = str(document.get("model_type"))
    if kind not in ROPE_OF_INDEXER:
        raise ConfigError(f"{where}: model_type is {kind!r}, expected {' or '.join(map(repr, ROPE_OF_INDEXER))}")
    sizes = {name: _positive(document, name, where) for name in _SIZES}
    layers = sizes["num_hidden_layers"]
    if document.get("attention_bias") or document.get("tie_word_embeddings"):
        raise ConfigError(
            f"{where}: attention_bias and tie_word_embeddings are not supported; no released model has them"
        )
    head = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    if sizes["qk_rope_head_dim"] % 2 or sizes["qk_rope_head_dim"] > sizes["index_head_dim"]:
        raise ConfigError(
            f"{where}: qk_rope_head_dim is {sizes['qk_rope_head_dim']}, expected an even number of at most "
            f"index_head_dim ({sizes['index_head_dim']})"
        )
    rotary, logit_scale = _rotary(document, sizes["qk_rope_head_dim"], where)
    eos = document.get("eos_token_id")
    optional = ("rms_norm_eps", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob")
    return ModelConfig(
        model_type=kind,
        **sizes,
        indexer_types=_kinds(document, "indexer_types", {"full", "shared"}, _indexers(document, layers), layers, where),
        mlp_layer_types=_kinds(
            document, "mlp_layer_types", {"dense", "sparse"}, _mlps(document, layers), layers, where
        ),
        rotary=rotary,
        sm_scale=head**-0.5 * logit_scale,
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        max_position_embeddings=document.get("max_position_embeddings", 1 << 30),
        **{name: document[name] for name in optional if name in document},
    )


def _positive(document: Mapping[str, Any], name: str, where: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{where}: {name} is {value!r}, expected a positive integer")
    return value


def _kinds(
    document: Mapping[str, Any], name: str, known: set[str], derived: list[str], layers: int, where: str
) -> tuple[str, ...]:
    kinds = document.get(name) or derived
    if len(kinds) != layers or not set(kinds) <= known:
        raise ConfigError(
            f"{where}: {name} is {kinds}, expected one of {sorted(known)} for each of {layers} layers "
            f"(num_hidden_layers)"
        )
    if name == "indexer_types" and kinds[0] != "full":
        raise ConfigError(f"{where}: {name} begins with {kinds[0]!r}: a shared layer needs a full one before it")
    return tuple(kinds)


def _indexers(document: Mapping[str, Any], layers: int) -> list[str]:
    """GLM's schedule where layers share, by pattern or by frequency and offset; otherwise all layers are full."""
    pattern = document.get("index_topk_pattern")
    if pattern is not None:
        return [{"F": "full", "S": "shared"}.get(letter, str(letter)) for letter in pattern]
    every, offset = max(document.get("index_topk_freq", 1), 1), document.get("index_skip_topk_offset", 2)
    return ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)]


def _mlps(document: Mapping[str, Any], layers: int) -> list[str]:
    dense = min(document.get("first_k_dense_replace", 3), layers)
    return ["dense"] * dense + ["sparse"] * (layers - dense)


def _rotary(document: Mapping[str, Any], dim: int, where: str) -> tuple[tuple[float, ...], float]:
    """Frequencies of the pairs, and the factor of the softmax scale.

    Older files keep YaRN in `rope_scaling` and the base beside it; newer ones have both in `rope_parameters`.
    Source: YaRN (arXiv 2309.00071) as DeepSeek-V3's inference code applies it.
    """
    rope = {"rope_theta": document.get("rope_theta", 10_000.0), **(document.get("rope_scaling") or {})}
    rope |= document.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = float(rope["rope_theta"])
    plain = [theta ** (-2 * pair / dim) for pair in range(dim // 2)]
    if kind == "default":
        return tuple(plain), 1.0
    if kind != "yarn":
        raise ConfigError(f"{where}: rope_type is {kind!r}, expected 'default' or 'yarn'")
    factor, original = float(rope["factor"]), rope.get("original_max_position_embeddings")
    if not original:
        raise ConfigError(f"{where}: YaRN needs original_max_position_embeddings, which is {original!r}")

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_that_turns(rope.get("beta_slow", 1))), dim - 1)
    share = [min(max((pair - low) / max(high - low, 1e-3), 0.0), 1.0) for pair in range(dim // 2)]
    rotary = tuple(p / factor * s + p * (1 - s) for p, s in zip(plain, share, strict=True))
    scale, all_dim = rope.get("mscale", 0), rope.get("mscale_all_dim", 0)
    if not scale or scale != all_dim:
        raise ConfigError(
            f"{where}: YaRN's mscale is {scale!r} and mscale_all_dim {all_dim!r}, expected equal numbers, as released "
            f"models have them; otherwise cos and sin would be scaled too, which is not supported"
        )
    return rotary, _mscale(factor, all_dim) ** 2


def _mscale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
