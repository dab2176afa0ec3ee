"""Runs one prefill of text files through the built-in model or a checkpoint and traces what its indexers select.

`trace_of` reads the files in the order given as one prompt, runs one prefill of it, and records what the indexers of
`settings.layers` selected for the last `settings.queries` tokens. It decides nothing about them: `analysis.py` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.profile.trace import Selections, Source, Trace


@dataclass(frozen=True)
class PrefillSettings:
    """What to record. layers: all that have an indexer if empty. queries: how many, at the end of the prompt."""

    layers: tuple[int, ...] = ()
    queries: int = 2048
    page_size: int = 64


def trace_of(
    files: Sequence[Path],
    model_dir: Path | None,
    settings: PrefillSettings,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Trace:
    """Prefill one prompt made of `files` and record its selections.

    model_dir: a folder with a Hugging Face checkpoint and its tokenizer. tell: told how many blocks are done, of how
      many. Raises `ConfigError` for files or a folder that cannot be read, for a layer without an indexer, and for a
      prompt shorter than `settings.queries`.
    """
    from dsa_verify.model.decoder import load_params
    from dsa_verify.model.prefill import selections_of

    text = "\n".join(map(_read, files))
    config, weights, tokens = _built_in(text) if model_dir is None else _checkpoint(model_dir, text)
    full = tuple(layer for layer, kind in enumerate(config.indexer_types) if kind == "full")
    layers = settings.layers or full
    absent = [layer for layer in layers if layer not in full]
    if absent:
        raise ConfigError(
            f"layer {absent[0]} has no indexer of its own; layers that have one: {', '.join(map(str, full))}"
        )
    if len(tokens) < settings.queries:
        raise ConfigError(f"the prompt has {len(tokens)} tokens; give a longer text, or --queries of at most as many")
    params = load_params(config, weights, np.float32)
    found = selections_of(config, params, np.array(tokens, np.int32), layers, settings.queries, tell)
    positions = np.arange(len(tokens) - settings.queries, len(tokens), dtype=np.int32)
    name = "built-in" if model_dir is None else model_dir.name
    source = Source(" + ".join(path.name for path in files), name, settings.page_size, config.index_topk, len(tokens))
    return Trace(source, {layer: Selections(positions, topk) for layer, topk in found.items()})


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; expected a UTF-8 text file") from error


def _built_in(text: str) -> tuple[Any, Any, list[int]]:
    from dsa_verify.model.tiny import Words, tiny_config, tiny_weights

    return tiny_config(), tiny_weights(), Words().encode(text)


def _checkpoint(folder: Path, text: str) -> tuple[Any, Any, list[int]]:
    """Configuration, weights and the prompt's tokens by the checkpoint's own tokenizer."""
    from dsa_verify.model.checkpoint import read_weights
    from dsa_verify.model.model_config import read_config

    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"{folder} has no tokenizer.json; expected the checkpoint's tokenizer beside its weights")
    if find_spec("tokenizers") is None:
        raise ConfigError("reading a checkpoint's tokenizer.json needs the package tokenizers; pip install tokenizers")
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

    return config, read_weights(folder, config), Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
