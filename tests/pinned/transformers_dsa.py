"""Pins what Hugging Face transformers computes for tiny GLM-MoE-DSA and DeepSeek-V3.2 decoders: the oracle's judge.

    python -m tests.pinned.transformers_dsa        # needs torch and transformers; writes golden/transformers/*.json

Weights and hidden states come from NumPy streams (`tests/unit/mla_projections.py`), go through transformers' own
`GlmMoeDsaModel` and `DeepseekV32Model` (eager attention, float64, its own cache), and what the layers compute is read
from the operands of their matrix products and from the cache. MLPs get a zero last projection, so that a layer is its
attention. The code of transformers runs as it is, but where it rounds to float32 it is made to stay in float64
(`widened`), since pins are compared at 1e-12; a test holds the code as shipped against the widened one.

Facts seen in transformers 5.24.0, `transformers/models/{glm_moe_dsa,deepseek_v32}/modeling_*.py`:

- RoPE of the main attention (class `...Attention.forward`): interleaved in both models. Queries and keys are left
  de-interleaved (`[evens | odds]`), and so cached; products do not see it. Heads are `[nope | rope]`.
- RoPE of the indexer (class `...Indexer.forward`): GLM-MoE-DSA interleaved (`apply_rotary_pos_emb_interleave`),
  DeepSeek-V3.2 half-split (`apply_rotary_pos_emb`). Neither is configurable. Heads are `[rope | nope]`.
- Index key: one head, `nn.LayerNorm` with weight and bias, eps 1e-6, before RoPE. Index queries come from the
  normalised q latent (`q_a_layernorm(q_a_proj(x))`), and have no norm of their own.
- Score: `sum_h w_h * relu(q_h . k * index_head_dim**-0.5)` with `w = weights_proj(x) * index_n_heads**-0.5`, signed;
  computed in float32. Then causal mask, then top-k of `min(index_topk, kv)`: a row with fewer candidates names
  masked positions too, which the attention mask removes.
- No Hadamard transform and no FP8: left out on purpose (docstring of `DeepseekV32Indexer.forward`: orthogonal, so
  products are preserved; FP8 is an optimisation).
- Softmax scale: `(qk_nope_head_dim + qk_rope_head_dim) ** -0.5`, times `(0.1 * mscale_all_dim * ln(factor) + 1)**2` if
  `rope_type` is not "default" and `mscale_all_dim` is not 0 (`yarn_apply_mscale`). The indexer's scale has no YaRN
  factor. cos and sin are multiplied by the YaRN factor of `mscale` over that of `mscale_all_dim`: 1 as published
  (`transformers/modeling_rope_utils.py`, `_compute_yarn_parameters`).
- `q_a_layernorm` and `kv_a_layernorm`: RMSNorm with eps 1e-6 whatever `config.rms_norm_eps` says (GLM: 1e-5); only the
  norms around attention and MLP read the config. The cached latent is after its norm.
- float32 in a float64 model: RMSNorm, cos and sin, index scores, the eager softmax. `indexer.weights_proj` is among
  the weights that loading keeps in float32 (`_keep_in_fp32_modules`).
- GLM-MoE-DSA: a layer whose `indexer_types` entry is "shared" has no indexer weights and reuses the indices of the
  last full layer; without one it raises. DeepSeek-V3.2 has no such layers. No dense short-cut: with `index_topk >= kv`
  the indexer still runs.
"""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from unittest import mock

import numpy as np
import torch
import transformers
from transformers import modeling_rope_utils

from tests.pinned.record import digest, record, write
from tests.unit.mla_projections import CASES, Run, run_named

_CLASSES = {"glm_moe_dsa": "GlmMoeDsa", "deepseek_v32": "DeepseekV32"}


class Spy:
    """`torch` as a modeling file sees it: writes matrix products down and, widened, has no float32."""

    def __init__(self, widened: bool):
        self.widened = widened
        self.products: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __getattr__(self, name: str):
        return torch.float64 if self.widened and name in ("float32", "float") else getattr(torch, name)

    def matmul(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """torch.matmul, its left operand and result kept."""
        product = torch.matmul(left, right)
        self.products.append((left, product))
        return product


@dataclass(frozen=True)
class Seen:
    """What transformers computed: stages per layer [tokens, ...], its softmax scale, its indexers' raw answers.

    `topk` has for each full layer and each forward call the indices i[queries, k] that its indexer returned.
    """

    trace: list[dict[str, np.ndarray]]
    sm_scale: float
    topk: list[list[np.ndarray]]


@contextlib.contextmanager
def spying(family: str, widened: bool) -> Iterator[Spy]:
    """Put a spy in place of `torch` in one model's file, and of float32 everywhere it is used when widened."""
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    spy = Spy(widened)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(modeling, "torch", spy))
        if widened:
            stack.enter_context(mock.patch.object(modeling_rope_utils, "torch", spy))
            stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        yield spy


def build(run: Run, attention: str):
    """transformers' model of a run's family with the run's weights, in float64, MLPs silenced."""
    d = run.decoder
    yarn = {"rope_type": "yarn", **asdict(d.yarn)} if d.yarn else {"rope_type": "default"}
    same = ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    same += ("qk_rope_head_dim", "index_n_heads", "index_head_dim", "index_topk", "rms_norm_eps")
    options = {name: getattr(d, name) for name in same}
    if d.family == "glm_moe_dsa":
        options["indexer_types"] = list(d.layers)
    config = getattr(transformers, _CLASSES[d.family] + "Config")(
        num_key_value_heads=d.num_attention_heads,
        num_hidden_layers=len(d.layers),
        mlp_layer_types=["dense"] * len(d.layers),
        intermediate_size=8,
        vocab_size=8,
        rope_parameters={"rope_theta": d.rope_theta, **yarn},
        attn_implementation=attention,
        **options,
    )
    model = getattr(transformers, _CLASSES[d.family] + "Model")(config).double().eval()
    drawn = {name: torch.from_numpy(x) for name, x in run.weights.items() if name != "hidden"}
    missing, unexpected = model.load_state_dict(drawn, strict=False)
    outside = ("embed_tokens.weight", "norm.weight", ".post_attention_layernorm.weight", "_proj.weight")
    if unexpected or not all(n.endswith(outside) and "self_attn" not in n for n in missing):
        raise ValueError(f"weights of {d.family}: missing {missing}, unexpected {unexpected}")
    for layer in model.layers:
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def observe(run: Run, widened: bool = True) -> Seen:
    """Run transformers over the chunks of a run with its own cache, and read off every stage."""
    d = run.decoder
    with spying(d.family, widened) as spy, torch.no_grad():
        model = build(run, "eager")
        topk: list[list[np.ndarray]] = [[] for _ in d.layers]
        outputs: list[list[np.ndarray]] = [[] for _ in d.layers]
        for i, layer in enumerate(model.layers):
            layer.self_attn.register_forward_hook(lambda _m, _i, out, i=i: outputs[i].append(_numpy(out[0])))
            if d.layers[i] == "full":
                layer.self_attn.indexer.register_forward_hook(lambda _m, _i, out, i=i: topk[i].append(_numpy(out)))
        cache = transformers.DynamicCache(config=model.config)
        steps, start = [], 0
        for size in run.chunks:
            spy.products.clear()
            hidden = torch.from_numpy(run.weights["hidden"][None, start : start + size])
            model(inputs_embeds=hidden, cache=cache, use_cache=True)
            steps.append(stages_of_step(run, spy, model))
            start += size
        trace = []
        for i in range(len(d.layers)):
            joined = {name: np.concatenate([step[i][name] for step in steps]) for name in steps[0][i]}
            trace.append(joined | cached(run, cache, i) | {"output": np.concatenate(outputs[i])})
        return Seen(trace, model.layers[0].self_attn.scaling, topk)


def stages_of_step(run: Run, spy: Spy, model) -> list[dict[str, np.ndarray]]:
    """Name the matrix products of one forward call: per full layer q.k and w.relu of the indexer, then q.k and p.v."""
    d, products, layers = run.decoder, iter(spy.products), []
    for i, kind in enumerate(d.layers):
        found = {}
        if kind == "full":
            (index_q, _), (weights, scores) = next(products), next(products)
            scores = _numpy(scores.squeeze(-2))
            unmasked = np.arange(scores.shape[1]) <= np.arange(scores.shape[1] - len(scores), scores.shape[1])[:, None]
            found["index_q"] = paired(_numpy(index_q), d.qk_rope_head_dim, d.index_rope)
            found["index_weights"] = _numpy(weights.squeeze(-2)) * model.layers[i].self_attn.indexer.softmax_scale
            found["index_score"] = _wide(np.where(unmasked, scores, 0.0), d.tokens)
        (query, _), (p, context) = next(products), next(products)
        query, context = _numpy(query.transpose(1, 2)), _numpy(context.transpose(1, 2))
        found["q_nope"] = query[..., : d.qk_nope_head_dim]
        found["q_pe"] = paired(query[..., d.qk_nope_head_dim :], d.qk_rope_head_dim, "interleaved")
        found["attended"] = _wide(_numpy(p).max(axis=0) > 0, d.tokens)
        found["context"] = context
        layers.append(found)
    if next(products, None) is not None:
        raise ValueError(f"{d.family} computes more matrix products than the four that a layer is known for")
    return layers


def cached(run: Run, cache, layer: int) -> dict[str, np.ndarray]:
    """c_kv, k_pe and index_k of one layer as transformers' cache holds them after the last step."""
    d, held = run.decoder, cache.layers[layer]
    found = {
        "c_kv": _numpy(held.keys)[0],
        "k_pe": paired(_numpy(held.values)[0], d.qk_rope_head_dim, "interleaved"),
    }
    if d.layers[layer] == "full":
        found["index_k"] = paired(_numpy(held.indexer_keys), d.qk_rope_head_dim, d.index_rope)
    return found


def paired(x: np.ndarray, rope: int, layout: str) -> np.ndarray:
    """x [..., n] whose first `rope` elements transformers left as `[evens | odds]`, put back in neighbouring pairs."""
    if layout != "interleaved":
        return x
    pairs = np.stack([x[..., : rope // 2], x[..., rope // 2 : rope]], axis=-1)
    return np.concatenate([pairs.reshape(*x.shape[:-1], rope), x[..., rope:]], axis=-1)


def plain_output(run: Run, attention: str) -> np.ndarray:
    """The last hidden state [tokens, hidden_size] of the model as shipped, without spy, widening, cache or chunks."""
    with torch.no_grad():
        model = build(run, attention)
        return _numpy(model(inputs_embeds=torch.from_numpy(run.weights["hidden"][None])).last_hidden_state)


def _numpy(x: torch.Tensor) -> np.ndarray:
    """The only sequence of a batch of one."""
    if x.shape[0] != 1:
        raise ValueError(f"expected a batch of one sequence, got shape {tuple(x.shape)}")
    return x[0].detach().numpy()


def _wide(x: np.ndarray, tokens: int) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, tokens - x.shape[1])))


def pin_of(case: str) -> dict:
    """The whole pin of a case: its record, a digest of its inputs, and the versions that made it."""
    run = run_named(case)
    seen = observe(run)
    versions = {package.__name__: package.__version__ for package in (np, torch, transformers)}
    return {
        "case": case,
        "inputs_sha256": digest(run.weights),
        "made_with": versions,
        "schema": 1,
        **record(seen.trace, seen.sm_scale),
    }


if __name__ == "__main__":
    for name in CASES:
        print(write(name, pin_of(name)))
