"""Model shapes by name: GLM-5.2 and DeepSeek-V3.2, their per-device slices, and mini shapes for CPU."""

from dataclasses import dataclass, replace
from typing import Literal

from dsa_verify.errors import unknown_name

LANES = 128
"""Width of a TPU vector register in lanes; the last axis of every cache is padded to a multiple."""


def align(n: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `n`."""
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class IndexerConvention:
    """What a model's indexer does around its kernel that no size shows.

    rope: whether the pairs that turn together are neighbours ("interleaved", GLM) or half the rotary part apart
      ("half_split", DeepSeek-V3.2). The first `rope_dim` lanes of a head turn: `[rope | nope]`, unlike MLA's heads.
    rope_theta: base of the rotary frequencies; a checkpoint's own config decides. frequencies: radians per position of
      each pair, where they are not powers of that base, as YaRN's are not.
    norm_eps: of the keys' LayerNorm, which has a bias.
    """

    rope: Literal["interleaved", "half_split"]
    rope_dim: int = 64
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    frequencies: tuple[float, ...] | None = None

    @property
    def rotary(self) -> tuple[float, ...]:
        """Radians per position of each pair."""
        pairs = self.rope_dim // 2
        return self.frequencies or tuple(self.rope_theta ** (-pair / pairs) for pair in range(pairs))


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one model (or one device's share of it) that DSA kernels see.

    `heads` is the number of attention heads on the device; the indexer's heads are replicated, since
    its score sums over all of them.
    """

    name: str
    heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hidden_size: int
    q_lora_rank: int
    indexer: IndexerConvention

    @property
    def sm_scale(self) -> float:
        """Softmax scale of the product before absorption; the latent width has no part in it."""
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5)

    @property
    def latent_width(self) -> int:
        """Lanes of one cached row: `[c_kv | pad | k_pe | pad]`, each part padded to 128 lanes."""
        return align(self.kv_lora_rank, LANES) + align(self.qk_rope_head_dim, LANES)

    def on_devices(self, tensor_parallel: int) -> "ModelShape":
        """The slice of one device when attention heads are split over `tensor_parallel` devices."""
        return replace(self, name=f"{self.name}-tp{tensor_parallel}", heads=self.heads // tensor_parallel)


# Sources: the published config.json of each model (zai-org/GLM-5, deepseek-ai/DeepSeek-V3.2-Exp); the rotary layouts
# and the norm are those of transformers' modeling files (glm_moe_dsa, deepseek_v32).
_INTERLEAVED, _HALF_SPLIT = IndexerConvention("interleaved"), IndexerConvention("half_split")
_GLM = ModelShape("glm-5.2", 64, 512, 192, 64, 32, 128, 2048, 6144, 2048, _INTERLEAVED)
_DEEPSEEK = ModelShape("deepseek-v3.2", 128, 512, 128, 64, 64, 128, 2048, 7168, 1536, _HALF_SPLIT)

# Mini shapes keep what layouts depend on (lane padding, a rotary part narrower than a lane tile, the
# indexer's 128-wide heads) and shrink what only costs time.
_MINI = ModelShape("mini", 4, 128, 64, 64, 4, 128, 64, 192, 96, _INTERLEAVED)
_MINI_HALF = replace(_MINI, name="mini-half-split", indexer=_HALF_SPLIT)
_MINI_WIDE = ModelShape("mini-wide", 8, 512, 128, 64, 8, 128, 64, 192, 96, _INTERLEAVED)

SHAPES = {
    shape.name: shape
    for shape in (
        _GLM,
        _GLM.on_devices(8),
        _GLM.on_devices(16),
        _DEEPSEEK,
        _DEEPSEEK.on_devices(8),
        _DEEPSEEK.on_devices(16),
        _MINI,
        _MINI_HALF,
        _MINI_WIDE,
    )
}


def shape_named(name: str) -> ModelShape:
    """Look a shape up; raises `ConfigError` with the nearest names when there is none."""
    if name not in SHAPES:
        raise unknown_name("shape", name, SHAPES)
    return SHAPES[name]
