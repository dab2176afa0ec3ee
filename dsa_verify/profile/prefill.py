"""The seam to the built-in model: text files in, the selections of its indexers out.

`trace_of` reads the files in the order given as one prompt, runs one prefill of it, and records what the indexers of
`settings.layers` selected for the last `settings.queries` tokens. It decides nothing about them: `analysis.py` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsa_verify.errors import ConfigError
from dsa_verify.profile.trace import Trace


@dataclass(frozen=True)
class Settings:
    """What to record. layers: all that have an indexer if empty. queries: how many, at the end of the prompt."""

    layers: tuple[int, ...] = ()
    queries: int = 2048
    page_size: int = 64


def trace_of(files: Sequence[Path], model_dir: Path | None, settings: Settings) -> Trace:
    """Prefill one prompt made of `files` and record its selections.

    model_dir: a folder with a Hugging Face checkpoint and its tokenizer. Raises `ConfigError` for files or a folder
    that cannot be read, for a layer without an indexer, and for a prompt shorter than `settings.queries`.
    """
    raise ConfigError("the built-in model is not part of this build; give --trace FILE.npz (docs/profile.md)")
