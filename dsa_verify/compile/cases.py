"""Cases: which surface or layer is compiled for which chip at which production shape, and the arrays it then takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dsa_verify.compile.layers import LAYERS, PROVIDER, over_data, surface_of
from dsa_verify.contract import SURFACES, Surface
from dsa_verify.errors import ConfigError
from dsa_verify.shapes import ModelShape, align, shape_named

SLICES = (16, 8)
"""Devices that a model's attention heads are split over; the first is the default."""
CONTEXTS = (131_072, 32_768, 8_192)
CHUNKS = (4_096, 8_192)
BATCHES = (64, 1, 16, 128)
PAGE_SIZES = (64, 128)
"""Sizes of a step. The first of each makes the default set, all of them `--all`."""
PREFILL_SEQS = 8
"""Sequences that a chunked prefill step has room for."""
POOL_TOKENS = 2**20
"""Tokens in the paged pool of one layer: 1.25 GiB of latent rows, 256 MiB of index keys. A copy of less than a core's
vector memory (128 MiB) could hide there, and would show in no figure."""

POOLS = ("cache_kv", "index_cache")
_INTEGERS = {"kv_lens", "cu_q_lens", "page_table", "topk_pages", "positions", "out_cache_loc"}
_BATCHED = {"index_topk", "index_page_topk", "dense_mla", "sparse_mla_decode", "indexer"}
"""Surfaces that decode steps run."""


@dataclass(frozen=True)
class CompileCase:
    """One surface of one provider at one shape for one chip, or a whole layer over a mesh of such chips.

    `context` and `page_size` are in tokens. Of a layer the model is whole, and every other size that of one part of the
    data (`layers.DATA`).
    """

    provider: str
    surface: str
    target: str
    model: str
    mode: Literal["prefill", "decode"]
    tokens: int
    context: int
    page_size: int

    @property
    def step(self) -> str:
        """The sizes of the step, as tables print them."""
        return f"{self.mode}{self.tokens}x{self.context}-p{self.page_size}"

    @property
    def shape(self) -> str:
        """The name of the whole shape, as reports print it."""
        return f"{self.model}-{self.step}"

    def lengths(self, pool_tokens: int = POOL_TOKENS) -> dict[str, int]:
        """The length of every axis of the surface's contract."""
        model, seqs = shape_named(self.model), self.tokens if self.mode == "decode" else PREFILL_SEQS
        return {
            "tokens": self.tokens,
            "seqs": seqs,
            "seqs+1": seqs + 1,
            "pages": pool_tokens // self.page_size,
            "page_size": self.page_size,
            "pages_per_seq": align(self.context, self.page_size) // self.page_size,
            "k_pages": align(model.index_topk, self.page_size) // self.page_size,
            "latent_width": model.latent_width,
            "index_heads_width": model.index_n_heads * model.index_head_dim,
            **{axis: getattr(model, axis) for axis in _MODEL_AXES},
        }

    def arrays(self, pool_tokens: int = POOL_TOKENS) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array: caches and activations in bfloat16, head weights in float32."""
        lengths = self.lengths(pool_tokens)
        arrays = {
            name: (tuple(lengths[axis] for axis in axes), _dtype(name))
            for name, axes in surface_of(self.surface).arrays.items()
        }
        return over_data(arrays) if self.surface in LAYERS else arrays

    def statics(self) -> dict[str, object]:
        """What the surface takes as compile-time constants."""
        model = shape_named(self.model)
        known = {"sm_scale": model.sm_scale, "index_topk": model.index_topk, "convention": model.indexer}
        return {name: known[name] for name in surface_of(self.surface).statics}

    def pool_bytes(self, pool_tokens: int = POOL_TOKENS) -> int:
        """Bytes of one device's paged pool that the surface reads or writes; of a layer's two, the smaller one."""
        model, arrays = shape_named(self.model), surface_of(self.surface).arrays
        latent = "index_cache" not in arrays
        return pool_tokens * (model.latent_width if latent else model.index_head_dim) * 2


_MODEL_AXES = (
    "heads", "kv_lora_rank", "qk_rope_head_dim", "index_n_heads", "index_head_dim", "hidden_size", "q_lora_rank",
)  # fmt: skip


def _dtype(array: str) -> str:
    if array in _INTEGERS:
        return "int32"
    return "float32" if array == "index_weights" else "bfloat16"


@dataclass(frozen=True)
class CompilePlan:
    """What to compile. `contexts` and `chunks` replace the sizes of the set; `everything` takes the full set."""

    providers: tuple[str, ...] = ("builtin",)
    surfaces: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("v5e", "v6e", "tpu7x")
    models: tuple[str, ...] = ("glm-5.2",)
    contexts: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    everything: bool = False


def cases(plan: CompilePlan) -> list[CompileCase]:
    """The cases of a plan, in its order; of those that mean the same arrays, the first.

    Raises `ConfigError` for a surface, model or size that does not exist.
    """
    for size in (*plan.contexts, *plan.chunks):
        if size < 1 or size > POOL_TOKENS:
            raise ConfigError(f"a context or chunk of {size} tokens: expected 1 to {POOL_TOKENS}, the pool's size")
    asked = [surface_of(name) for name in plan.surfaces]
    models = [device for name in plan.models for device in _per_device(name, plan.everything)]
    found: dict[tuple, CompileCase] = {}
    for provider in plan.providers:
        for target in plan.targets:
            for surface in asked or _all(provider):
                for case in _of_surface(plan, surface, models, provider, target):
                    same = (provider, target, surface.name, *case.arrays().items(), *case.statics().items())
                    found.setdefault(same, case)
    return list(found.values())


def _all(provider: str) -> list[Surface]:
    """Everything that can be compiled of a provider; layers run one provider's kernels only."""
    return [*SURFACES.values(), *(layer.surface for layer in LAYERS.values() if provider == PROVIDER)]


def _per_device(name: str, everything: bool) -> list[ModelShape]:
    """The slices of a whole model, or the one that is named."""
    if name.rpartition("-tp")[2].isdigit():
        return [shape_named(name)]
    return [shape_named(f"{shape_named(name).name}-tp{split}") for split in (SLICES if everything else SLICES[:1])]


def _of_surface(
    plan: CompilePlan, surface: Surface, models: Sequence[ModelShape], provider: str, target: str
) -> Iterator[CompileCase]:
    def sizes(full: Sequence[int]) -> Sequence[int]:
        return full if plan.everything else full[:1]

    modes: list[tuple[Literal["prefill", "decode"], Sequence[int]]] = []
    if not surface.decode_only:
        modes.append(("prefill", plan.chunks or sizes(CHUNKS)))
    if surface.decode_only or (plan.everything and surface.name in _BATCHED):
        modes.append(("decode", sizes(BATCHES)))
    if surface.name in LAYERS:
        models = list({name: shape_named(name) for name in (one.name.partition("-tp")[0] for one in models)}.values())
    for model in models:
        for mode, steps in modes:
            for tokens in steps:
                for context in plan.contexts or sizes(CONTEXTS):
                    for page_size in sizes(PAGE_SIZES):
                        yield CompileCase(provider, surface.name, target, model.name, mode, tokens, context, page_size)
