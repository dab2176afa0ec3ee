"""ModelRunner: a decoder with its pools, driven step by step by an engine; it reports the path of every layer."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dsa_verify.engine.step import Step
from dsa_verify.model.backend import LayerPath, Metadata, Mode
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.model.checkpoint import read_weights
from dsa_verify.model.decoder import ModelStep, Static, forward, load_params, new_pools
from dsa_verify.model.model_config import ModelConfig, read_config


@dataclass(frozen=True)
class Chosen:
    """What one full layer chose in a step: for every real token its position and pages or tokens, -1 at the tail."""

    layer: int
    positions: np.ndarray
    topk: np.ndarray


@dataclass
class ModelRunner:
    """An `engine.Runner` over a decoder.

    on_choice: called for each full layer that chose, after each step; None to leave the choices on the device.
    paths: how often each (mode, layer, path) ran, so that "sparse was silently never taken" can be checked.
    """

    config: ModelConfig
    params: Mapping[str, jax.Array]
    backend: BackendConfig
    page_size: int
    pool_pages: int
    dtype: DTypeLike = jnp.float32
    on_choice: Callable[[Chosen], None] | None = None
    paths: Counter[tuple[str, int, LayerPath]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.pools = new_pools(self.config, self.pool_pages, self.page_size, self.dtype)

    @classmethod
    def load(
        cls, folder: Path, backend: BackendConfig, page_size: int, pool_pages: int, dtype: DTypeLike = jnp.float32
    ) -> "ModelRunner":
        """A runner of a checkpoint directory. Raises `ConfigError`."""
        config = read_config(folder)
        params = load_params(config, read_weights(folder, config), dtype)
        return cls(config, params, backend, page_size, pool_pages, dtype)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def run(self, step: Step) -> np.ndarray:
        """Logits f32[seqs, vocab_size] after each sequence's last token; the pools hold the step's rows afterwards."""
        static = Static(self.config, self.backend, cast(Mode, step.mode))
        last = np.maximum(step.cu_q_lens[1:] - 1, 0)
        given = ModelStep(jnp.asarray(step.tokens), Metadata.of(step), jnp.asarray(last))
        result = _compiled(static, self.params, given, self.pools)
        self.pools = result.pools
        self.paths.update((step.mode, layer, path) for layer, path in enumerate(static.paths))
        if self.on_choice is not None:
            real = step.positions >= 0
            for layer, selection in enumerate(result.selections):
                if selection is not None:
                    chosen = selection.pages if selection.tokens is None else selection.tokens
                    self.on_choice(Chosen(layer, step.positions[real], np.asarray(chosen)[real]))
        return np.asarray(result.logits)


_compiled = jax.jit(forward, static_argnums=0, donate_argnums=3)
"""One compilation for every (configuration, mode, bucket); the pools are updated in place."""
