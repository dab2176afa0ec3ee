"""What a server serves: a model behind an engine, how its text becomes tokens, and what it says about itself."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dsa_verify import __version__
from dsa_verify.batch.requests import page_count
from dsa_verify.engine import Engine, EngineConfig, GenerationRequest, Report
from dsa_verify.errors import ConfigError
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.serve.text import Tokenizer

BUILT_IN, BUILT_IN_TOPK = "dsa-verify-tiny", 128
"""Name of the built-in model, and its budget: 8 pages of 16, so that prompts of a few hundred words are long ones."""
_PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "starlette", "uvicorn")


@dataclass(frozen=True)
class ServerSettings:
    """How to serve.

    model: a Hugging Face checkpoint directory, or None for the built-in model. index_topk: None for the model's own
    (`BUILT_IN_TOPK` for the built-in one). context_length: prompt and answer, in tokens; a step of jnp kernels costs in
    proportion to it, however short the prompt is. chunk_tokens: prompt tokens of one step. concurrency: requests that
    run at once. kernels: None for Pallas on a TPU and jnp elsewhere.
    """

    model: Path | None = None
    index_topk: int | None = None
    page_size: int = 16
    context_length: int = 2048
    chunk_tokens: int = 64
    concurrency: int = 1
    prefix_cache: bool = False
    kernels: Literal["pallas", "jnp"] | None = None


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that is ready.

    runner: the `model.runner.ModelRunner` that `engine` drives. tokenizer: makes one for a request. environment: the
    DSA_* variables that were given.
    """

    name: str
    settings: ServerSettings
    engine: Engine
    runner: Any
    tokenizer: Callable[[], Tokenizer]
    environment: Mapping[str, str]

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer together."""
        return self.settings.context_length

    @property
    def stop(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return self.runner.config.eos_token_ids


def load(settings: ServerSettings, environment: Mapping[str, str]) -> ServedModel:
    """A model as `settings` and the DSA_* variables of `environment` ask for, compiled. Raises `ConfigError`."""
    import jax
    import jax.numpy as jnp

    from dsa_verify.model.decoder import load_params
    from dsa_verify.model.runner import ModelRunner

    if settings.page_size % 16:
        raise ConfigError(f"page size {settings.page_size} is not a multiple of 16")
    kernels = settings.kernels or ("pallas" if jax.default_backend() == "tpu" else "jnp")
    backend = BackendConfig.from_environment(environment, kernels)
    config, weights, tokenizer = _built_in() if settings.model is None else _checkpoint(settings.model)
    topk = settings.index_topk or (BUILT_IN_TOPK if settings.model is None else config.index_topk)
    config = replace(config, index_topk=topk)
    pages = page_count(settings.context_length, settings.page_size)
    engine_config = EngineConfig(
        max_running=settings.concurrency,
        chunk_tokens=settings.chunk_tokens,
        pages_per_seq=pages,
        prefix_cache=settings.prefix_cache,
    )
    params = load_params(config, weights, jnp.float32)
    runner = ModelRunner(config, params, backend, settings.page_size, pages * settings.concurrency + 1)
    engine = Engine(runner, engine_config)
    _warm_up(engine)
    runner.paths.clear()
    engine.report = Report()
    name = BUILT_IN if settings.model is None else settings.model.resolve().name
    variables = {name: value for name, value in sorted(environment.items()) if name.startswith("DSA_")}
    return ServedModel(name, settings, engine, runner, tokenizer, variables)


def _warm_up(engine: Engine) -> None:
    """Runs every kind of step once, so that the first request does not wait for the compiler."""
    first = GenerationRequest((1, 1), max_new_tokens=4)
    engine.generate([first, GenerationRequest((1, 1), max_new_tokens=2, arrival=engine.scheduler.clock + 2)])


def _built_in() -> tuple[Any, Mapping[str, Any], Callable[[], Tokenizer]]:
    from dsa_verify.model.tiny import Words, tiny_config, tiny_weights

    # A vocabulary of its own for every request: `Words` shows a token as it was first written.
    return tiny_config(), tiny_weights(), Words


def _checkpoint(folder: Path) -> tuple[Any, Mapping[str, Any], Callable[[], Tokenizer]]:
    from dsa_verify.model.checkpoint import read_weights
    from dsa_verify.model.model_config import read_config

    config = read_config(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder} has no tokenizer.json; expected the checkpoint's tokenizer beside its weights")
    if find_spec("tokenizers") is None:
        raise ConfigError("reading a checkpoint's tokenizer.json needs the package tokenizers; pip install tokenizers")
    from tokenizers import Tokenizer as Fast  # pyright: ignore[reportMissingImports]

    tokenizer = _Fast(Fast.from_file(str(path)))
    return config, read_weights(folder, config), lambda: tokenizer


@dataclass(frozen=True)
class _Fast:
    """A checkpoint's own tokenizer."""

    inner: Any

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        return self.inner.decode(tokens, skip_special_tokens=True)


def describe(served: ServedModel) -> dict[str, Any]:
    """What runs and what has run, for a manifest. Call it in the engine's thread: it reads the counts of steps.

    `paths` counts for every (mode, layer) the path it took; `sparse_prefill` is the sum of those that are extend or
    mixed and sparse: 0 in a dense arm, and proof in a sparse one that sparse prefill ran.
    """
    import jax

    paths = [
        {"mode": mode, "layer": layer, **asdict(path), "steps": steps}
        for (mode, layer, path), steps in sorted(served.runner.paths.items(), key=lambda item: item[0][:2])
    ]
    sparse = [path["steps"] for path in paths if path["mode"] != "decode" and path["attention"].startswith("sparse")]
    settings = {**asdict(served.settings), "model": served.name, "index_topk": served.runner.config.index_topk}
    return {
        **settings,
        "model_type": served.runner.config.model_type,
        "kernels": served.runner.backend.kernels,
        "backend": asdict(served.runner.backend),
        "environment": dict(served.environment),
        "paths": paths,
        "sparse_prefill": sum(sparse),
        "engine": asdict(served.engine.report),
        "running": len(served.engine.scheduler.running),
        "waiting": len(served.engine.scheduler.waiting),
        "versions": {"dsa_verify": __version__, "python": platform.python_version(), **_versions()},
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "pid": os.getpid(),
    }


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES if find_spec(name) is not None}
