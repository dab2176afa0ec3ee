"""Wirings: the ways in which the backend can be configured, the path that each must take, and the models behind."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.runtime import interpreted
from dsa_verify.runtime.watch import CallRecorder
from dsa_verify.system.random_model import DOCUMENTS, weights_of
from dsa_verify.system.reference import Reference

if TYPE_CHECKING:
    from dsa_verify.model.model_config import ModelConfig
    from dsa_verify.model.runner import ModelRunner

PAGE_SIZE = 16
EVERYTHING = 128
"""A budget in tokens, and more than enough in pages, that no history here exceeds."""


@dataclass(frozen=True)
class Wiring:
    """A configuration of the backend.

    decode, prefill: what full and shared layers must run in decodes, and in extend and mixed ones, as `str(LayerPath)`.
    same_as: an earlier wiring of the same mathematics, whose answers it must give.
    index_topk, kind, layers: of the model behind it, which has all layers of its kind unless told.
    """

    backend: BackendConfig
    decode: tuple[str, str]
    prefill: tuple[str, str]
    same_as: str | None = None
    index_topk: int = 20
    kind: str = "glm_moe_dsa"
    layers: int | None = None

    @property
    def interpreted(self) -> bool:
        """Whether a Pallas kernel runs, which a CPU interprets."""
        return self.backend.kernels == "pallas"

    def due(self, mode: str, layer_kind: str) -> str:
        """The path of a layer in a step."""
        return (self.decode if mode == "decode" else self.prefill)[layer_kind == "shared"]

    @property
    def config(self) -> "ModelConfig":
        """The model: GLM's layers share selections two by two, DeepSeek's all choose for themselves."""
        return _config(self.kind, self.index_topk, self.layers or DOCUMENTS[self.kind]["num_hidden_layers"])

    @property
    def twin(self) -> "Wiring | None":
        """The wiring that it must answer as, over the same layers."""
        return replace(WIRINGS[self.same_as], layers=self.layers) if self.same_as else None

    def reference(self) -> Reference:
        weights = {name: value.astype(float) for name, value in _weights(self.config).items()}
        return Reference(self.config, weights, self.backend, PAGE_SIZE)

    def runner(self, pool_pages: int) -> "ModelRunner":
        """A `ModelRunner` whose pools hold NaN wherever nothing was written."""
        import jax
        import jax.numpy as jnp

        from dsa_verify.model.decoder import load_params
        from dsa_verify.model.runner import ModelRunner

        params = load_params(self.config, _weights(self.config), np.float32)
        runner = ModelRunner(self.config, params, self.backend, PAGE_SIZE, pool_pages)
        runner.pools = jax.tree.map(lambda pool: jnp.full_like(pool, jnp.nan), runner.pools)
        return runner

    @contextmanager
    def running(self) -> Iterator[CallRecorder | None]:
        """Pallas kernels run under the watched interpreter inside, which reports to the recorder, if there are any."""
        # JAX's own force_tpu_interpret_mode can hang on two cores (see `interpreted`).
        with interpreted() if self.interpreted else nullcontext() as recorder:
            yield recorder


@cache
def _config(kind: str, index_topk: int, layers: int):
    from dsa_verify.model.model_config import parse_config

    document = {**DOCUMENTS[kind], "index_topk": index_topk, "num_hidden_layers": layers}
    document["first_k_dense_replace"] = layers  # the reference has no mixture of experts
    if "indexer_types" in document:
        document["indexer_types"] = document["indexer_types"][:layers]
    return parse_config(document, kind)


@cache
def _weights(config) -> dict[str, np.ndarray]:
    return weights_of(config.model_type, config)


_FEW = 2
"""Layers where compilation takes longest: a full one, and one that shares its selection."""
_JNP = BackendConfig(kernels="jnp")
_SPARSE = replace(_JNP, prefill_sparse=True)
_PALLAS = replace(_SPARSE, kernels="pallas", indexer_kernel=True, indexer_kernel_prefill=True, query_block=16)
_TOKENS = ("sparse_mla_tokens, tokens by jnp", "sparse_mla_tokens, shared")
_DECODE_TOKENS = ("sparse_mla_decode, tokens by jnp", "sparse_mla_decode, shared")
_DECODE_PAGES = ("sparse_mla_decode, pages by jnp", "sparse_mla_decode, shared")
_DENSE = ("dense_mla, keys", "dense_mla, none")
_BLOCKS = ("sparse_mla_prefill_qblock, pages by jnp", "sparse_mla_prefill_qblock, shared")
_QUERIES = ("sparse_mla_prefill, pages by jnp", "sparse_mla_prefill, shared")


def _by_kernel(path: tuple[str, str]) -> tuple[str, str]:
    return path[0].replace("by jnp", "by pallas"), path[1]


WIRINGS: dict[str, Wiring] = {
    "exact-tokens": Wiring(replace(_JNP, granularity="token"), _TOKENS, _TOKENS),
    "exact-tokens-deepseek": Wiring(replace(_JNP, granularity="token"), _TOKENS, _TOKENS, kind="deepseek_v32"),
    "dense-prefill": Wiring(_JNP, _DECODE_TOKENS, _DENSE),
    "dense-prefill-budget": Wiring(replace(_JNP, page_topk=2), _DECODE_PAGES, _DENSE),
    "sparse-prefill": Wiring(_SPARSE, _DECODE_TOKENS, _BLOCKS),
    "sparse-prefill-by-query": Wiring(
        replace(_SPARSE, prefill_qblock=False), _DECODE_TOKENS, _QUERIES, "sparse-prefill"
    ),
    "sparse-prefill-budget": Wiring(replace(_SPARSE, page_topk=2), _DECODE_PAGES, _BLOCKS),
    "dense": Wiring(replace(_JNP, page_topk=EVERYTHING), _DECODE_PAGES, _DENSE, layers=_FEW),
    "sparse-with-everything": Wiring(
        replace(_SPARSE, page_topk=EVERYTHING), _DECODE_PAGES, _BLOCKS, "dense", index_topk=EVERYTHING, layers=_FEW
    ),
    "pallas": Wiring(
        replace(_PALLAS, page_topk=2), _DECODE_PAGES, _by_kernel(_BLOCKS), "sparse-prefill-budget", layers=_FEW
    ),
    "pallas-by-query": Wiring(
        replace(_PALLAS, prefill_qblock=False), _by_kernel(_DECODE_TOKENS), _by_kernel(_QUERIES), "sparse-prefill",
        layers=_FEW,
    ),
    "pallas-dense-prefill": Wiring(
        replace(_PALLAS, prefill_sparse=False), _by_kernel(_DECODE_TOKENS), _DENSE, "dense-prefill", layers=_FEW
    ),
}  # fmt: skip
"""Every path of the backend; those with Pallas kernels take a minute to compile for interpret mode."""
FAST = tuple(name for name, wiring in WIRINGS.items() if not wiring.interpreted)
