"""A tiny DSA decoder in NumPy around an attention core that the caller supplies: weights, norms, RoPE, projections."""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

SEED = 32
"""The first seed for which every sparse row's k-th and next score are 0.002 of the largest apart (a test checks it)."""

PAST = ("c_kv", "k_pe", "index_k")
"""What later tokens read of earlier ones: the contents of the cache."""


@dataclass(frozen=True)
class Yarn:
    """YaRN as DeepSeek-V3.2's published config.json sets it: rope_scaling, with the file's names."""

    factor: float = 40.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0
    original_max_position_embeddings: int = 4096


@dataclass(frozen=True)
class Decoder:
    """Sizes and conventions of a decoder; no two sizes are equal.

    `layers` holds "full" (has an indexer) or "shared" (reuses the selection of the layer before) per layer. A rotation
    is "interleaved" (pairs are neighbours) or "half_split". `index_rope_last` is false where indexer heads are
    `[rope | nope]`. `index_norm` is "layer" or "rms". `rms_norm_eps` belongs to the norm before attention only.
    """

    family: str
    layers: tuple[str, ...]
    index_rope: str
    rms_norm_eps: float
    index_topk: int = 6
    yarn: Yarn | None = None
    attention_rope: str = "interleaved"
    index_rope_last: bool = False
    index_norm: str = "layer"
    index_norm_eps: float = 1e-6
    latent_norm_eps: float = 1e-6
    tokens: int = 20
    hidden_size: int = 44
    num_attention_heads: int = 2
    q_lora_rank: int = 28
    kv_lora_rank: int = 32
    qk_nope_head_dim: int = 16
    qk_rope_head_dim: int = 8
    v_head_dim: int = 11
    index_n_heads: int = 4
    index_head_dim: int = 18
    rope_theta: float = 10000.0

    @property
    def sm_scale(self) -> float:
        """Softmax scale: the query width before absorption, and the squared YaRN factor where there is one."""
        scale = (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        if self.yarn:
            scale *= (0.1 * self.yarn.mscale_all_dim * math.log(self.yarn.factor) + 1.0) ** 2
        return scale


@dataclass(frozen=True)
class Core:
    """What is under test, of the oracle's signatures: `index_scores`, `best`, `token_mask`, `attend`."""

    scores: Callable[..., Any]
    choose: Callable[..., np.ndarray]
    mask: Callable[..., np.ndarray]
    attend: Callable[..., Any]


@dataclass(frozen=True)
class Run:
    """One sequence through a decoder in steps of `chunks` tokens; `positions` i[tokens] are what rotates."""

    decoder: Decoder
    chunks: tuple[int, ...]
    weights: dict[str, np.ndarray]
    positions: np.ndarray


@dataclass(frozen=True)
class Step:
    """What a layer gets: which tokens, hidden f64[tokens, hidden_size], and the layer before's topk i[tokens, k]."""

    rows: slice
    hidden: np.ndarray
    topk: np.ndarray


def uniform(name: str, *shape: int) -> np.ndarray:
    """f64[shape] in [-1, 1), one stream per name, the same bits everywhere: RandomState's stream is frozen (NEP 19)."""
    return np.random.RandomState([SEED, zlib.crc32(name.encode())]).random_sample(shape) * 2.0 - 1.0


def shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """Shape of each attention weight by the name that transformers' state dict gives it, [out, in] for matrices."""
    d, heads = decoder, decoder.num_attention_heads
    found: dict[str, tuple[int, ...]] = {}
    for layer, kind in enumerate(d.layers):
        at = f"layers.{layer}."
        found |= {
            at + "input_layernorm.weight": (d.hidden_size,),
            at + "self_attn.q_a_proj.weight": (d.q_lora_rank, d.hidden_size),
            at + "self_attn.q_a_layernorm.weight": (d.q_lora_rank,),
            at + "self_attn.q_b_proj.weight": (heads * (d.qk_nope_head_dim + d.qk_rope_head_dim), d.q_lora_rank),
            at + "self_attn.kv_a_proj_with_mqa.weight": (d.kv_lora_rank + d.qk_rope_head_dim, d.hidden_size),
            at + "self_attn.kv_a_layernorm.weight": (d.kv_lora_rank,),
            at + "self_attn.kv_b_proj.weight": (heads * (d.qk_nope_head_dim + d.v_head_dim), d.kv_lora_rank),
            at + "self_attn.o_proj.weight": (d.hidden_size, heads * d.v_head_dim),
        }
        if kind == "full":
            found |= {
                at + "self_attn.indexer.wq_b.weight": (d.index_n_heads * d.index_head_dim, d.q_lora_rank),
                at + "self_attn.indexer.wk.weight": (d.index_head_dim, d.hidden_size),
                at + "self_attn.indexer.k_norm.weight": (d.index_head_dim,),
                at + "self_attn.indexer.k_norm.bias": (d.index_head_dim,),
                at + "self_attn.indexer.weights_proj.weight": (d.index_n_heads, d.hidden_size),
            }
    return found


def draw(decoder: Decoder) -> dict[str, np.ndarray]:
    """All weights, and `hidden` f64[tokens, hidden_size]; matrices keep unit variance, queries double it."""
    weights = {"hidden": uniform("hidden", decoder.tokens, decoder.hidden_size) * math.sqrt(3.0)}
    for name, shape in shapes(decoder).items():
        values = uniform(name, *shape)
        if len(shape) == 2:
            values *= math.sqrt(3.0 / shape[1]) * (2.0 if "q_b_proj" in name else 1.0)
        else:
            values = 0.5 * values + (0.0 if name.endswith("bias") else 1.0)
        weights[name] = values
    return weights


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x [..., n] divided by its root mean square, times weight [n]."""
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """x [..., n] without its mean, divided by its standard deviation, times weight [n], plus bias [n]."""
    x = x - x.mean(axis=-1, keepdims=True)
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) + bias


def frequencies(decoder: Decoder) -> np.ndarray:
    """f64[qk_rope_head_dim / 2]: radians per position of each pair, slowed by YaRN where a pair turns rarely."""
    dim, theta, yarn = decoder.qk_rope_head_dim, decoder.rope_theta, decoder.yarn
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    if yarn is None:
        return plain

    def pair_that_turns(times: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (2 * math.pi * times)
        return dim * math.log(wavelength) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(yarn.beta_slow)), dim - 1)
    slowed = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    return plain * (1.0 - slowed) + plain / yarn.factor * slowed


def rotate(x: np.ndarray, angles: np.ndarray, layout: str) -> np.ndarray:
    """x [tokens, heads, n] with each pair turned by angles [tokens, n / 2]; a pair stays where it was."""
    half = x.shape[-1] // 2
    first = slice(0, None, 2) if layout == "interleaved" else slice(0, half)
    second = slice(1, None, 2) if layout == "interleaved" else slice(half, None)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)[:, None, :]
    out = np.empty_like(x)
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def project_attention(run: Run, layer: int, x: np.ndarray, angles: np.ndarray) -> dict[str, np.ndarray]:
    """q_nope [tokens, heads, nope], q_pe [tokens, heads, rope], c_kv [tokens, rank], k_pe [tokens, rope], q_lora."""
    d, w = run.decoder, weights_of(run, layer)
    q_lora = rms_norm(x @ w("q_a_proj").T, w("q_a_layernorm"), d.latent_norm_eps)
    q = (q_lora @ w("q_b_proj").T).reshape(len(x), d.num_attention_heads, -1)
    kv = x @ w("kv_a_proj_with_mqa").T
    return {
        "q_lora": q_lora,
        "q_nope": q[..., : d.qk_nope_head_dim],
        "q_pe": rotate(q[..., d.qk_nope_head_dim :], angles, d.attention_rope),
        "c_kv": rms_norm(kv[:, : d.kv_lora_rank], w("kv_a_layernorm"), d.latent_norm_eps),
        "k_pe": rotate(kv[:, None, d.kv_lora_rank :], angles, d.attention_rope)[:, 0],
    }


def project_indexer(
    run: Run, layer: int, x: np.ndarray, q_lora: np.ndarray, angles: np.ndarray
) -> dict[str, np.ndarray]:
    """index_q [tokens, index_n_heads, index_head_dim], index_k [tokens, index_head_dim], index_weights."""
    d, w = run.decoder, weights_of(run, layer)

    def rotated(heads: np.ndarray) -> np.ndarray:
        at = slice(-d.qk_rope_head_dim, None) if d.index_rope_last else slice(0, d.qk_rope_head_dim)
        out = heads.copy()
        out[..., at] = rotate(heads[..., at], angles, d.index_rope)
        return out

    k = x @ w("indexer.wk").T
    if d.index_norm == "layer":
        k = layer_norm(k, w("indexer.k_norm"), w("indexer.k_norm", "bias"), d.index_norm_eps)
    else:
        k = rms_norm(k, w("indexer.k_norm"), d.index_norm_eps)
    q = (q_lora @ w("indexer.wq_b").T).reshape(len(x), d.index_n_heads, d.index_head_dim)
    return {
        "index_q": rotated(q),
        "index_k": rotated(k[:, None])[:, 0],
        "index_weights": x @ w("indexer.weights_proj").T * (d.index_n_heads * d.index_head_dim) ** -0.5,
    }


def weights_of(run: Run, layer: int) -> Callable[..., np.ndarray]:
    """A function from the name of a module of one layer's attention to its weight."""
    return lambda module, kind="weight": run.weights[f"layers.{layer}.self_attn.{module}.{kind}"]


def absorbed(decoder: Decoder, kv_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W_UK [heads, nope, rank] and W_UV [heads, v, rank] out of kv_b_proj's [heads * (nope + v), rank]."""
    per_head = kv_b.reshape(decoder.num_attention_heads, -1, decoder.kv_lora_rank)
    return per_head[:, : decoder.qk_nope_head_dim], per_head[:, decoder.qk_nope_head_dim :]


def layer_step(run: Run, core: Core, layer: int, step: Step, past: list[dict]) -> dict[str, np.ndarray]:
    """What one layer computes for the tokens of a step; its caches are the earlier steps in `past`, joined by this."""
    d, positions, w = run.decoder, run.positions[step.rows], weights_of(run, layer)
    angles = positions[:, None] * frequencies(d)
    x = rms_norm(step.hidden, run.weights[f"layers.{layer}.input_layernorm.weight"], d.rms_norm_eps)
    now = project_attention(run, layer, x, angles)
    if d.layers[layer] == "full":
        now |= project_indexer(run, layer, x, now["q_lora"], angles)
    past.append(now)
    cache = {name: np.concatenate([earlier[name] for earlier in past]) for name in PAST if name in now}
    kv = len(cache["c_kv"])
    later = ((0, 0), (0, d.tokens - kv))
    now["topk"] = step.topk
    if d.layers[layer] == "full":
        value = core.scores(now["index_q"], now["index_weights"], cache["index_k"], positions).value
        now["topk"] = core.choose(value, d.index_topk)
        now["index_score"] = np.pad(np.where(np.isfinite(value), value, 0.0), later)
    allowed = core.mask(now["topk"], kv)
    w_uk, w_uv = absorbed(d, w("kv_b_proj"))
    ql_nope = np.einsum("qhn,hnr->qhr", now["q_nope"], w_uk)
    attended = core.attend(ql_nope, now["q_pe"], cache["c_kv"], cache["k_pe"], allowed, d.sm_scale)
    now["attended"] = np.pad(allowed, later)
    now["context"] = np.einsum("qhr,hvr->qhv", attended.out, w_uv)
    now["output"] = now["context"].reshape(len(x), -1) @ w("o_proj").T
    return now


def decode(run: Run, core: Core) -> list[dict[str, np.ndarray]]:
    """Per layer, what each stage computed for all tokens, [tokens, ...]; the MLPs of this decoder add nothing."""
    past: list[list[dict]] = [[] for _ in run.decoder.layers]
    start = 0
    for size in run.chunks:
        rows = slice(start, start + size)
        step = Step(rows, run.weights["hidden"][rows], np.empty((size, 0), int))
        for layer in range(len(run.decoder.layers)):
            now = layer_step(run, core, layer, step, past[layer])
            step = Step(rows, step.hidden + now["output"], now["topk"])
        start += size
    return [{name: np.concatenate([step[name] for step in steps]) for name in steps[0]} for steps in past]


_GLM = Decoder("glm_moe_dsa", ("full", "shared"), "interleaved", rms_norm_eps=1e-5)
_DEEPSEEK = Decoder("deepseek_v32", ("full", "full"), "half_split", rms_norm_eps=1e-6, yarn=Yarn())


def run_named(name: str) -> Run:
    """The inputs of a case, `family-kind`: sparse, dense, chunked (13 tokens, then 7) or decode (19, then 1)."""
    family, kind = name.split("-")
    decoder = {d.family: d for d in (_GLM, _DEEPSEEK)}[family]
    if kind == "dense":
        decoder = replace(decoder, index_topk=decoder.tokens)
    chunks = {"chunked": (13, 7), "decode": (19, 1)}.get(kind, (decoder.tokens,))
    return Run(decoder, chunks, draw(decoder), np.arange(decoder.tokens))


CASES = tuple(f"{d.family}-{kind}" for d in (_GLM, _DEEPSEEK) for kind in ("sparse", "dense", "chunked", "decode"))
