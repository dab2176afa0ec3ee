"""The options of `dsa-verify gate` as one value, whose defaults are those of the command and of what it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PACKAGES = ("lm_eval", "datasets", "jieba", "fuzzywuzzy", "rouge", "httpx", "jinja2")
"""What a gate imports beside what every command does."""
DENSE, SPARSE = {"DSA_PREFILL_SPARSE": "0"}, {"DSA_PREFILL_SPARSE": "1"}
"""Environment of the arms, where the options give none."""
GSM8K_TOKENS = 7000
"""Of a prompt of gsm8k_long: sgl-project/sglang-jax#1508 compared its arms on prompts of about 7,000 tokens."""


@dataclass(frozen=True)
class GateOptions:
    """The options of `dsa-verify gate`, by their names there.

    None: it depends on the arms or tasks that are asked for; for alpha, margins and seed: what `Rule` has.
    """

    baseline: str = "dense"
    tasks: tuple[str, ...] = ()
    data: Path | None = None
    documents: int | None = None
    dense_url: str | None = None
    sparse_url: str | None = None
    degraded_url: str | None = None
    server_cmd: str | None = None
    dense_env: tuple[str, ...] = ()
    sparse_env: tuple[str, ...] = ()
    dense_samples: Path | None = None
    sparse_samples: Path | None = None
    model: str | None = None
    api: Literal["completions", "chat"] = "completions"
    token_env: str | None = None
    index_topk: int = 2048
    page_size: int = 64
    max_prompt_tokens: int | None = None
    needle_tokens: tuple[int, ...] | None = None
    gsm8k_tokens: int | None = None
    tokenizer: Path | None = None
    concurrency: int = 1
    timeout: float = 300.0
    patience: float = 900.0
    repeats: int = 1
    work: Path | None = None
    controls: bool | None = None
    trust_sparse: bool = False
    differs: tuple[str, ...] = ()
    alpha: float | None = None
    macro_margin: float | None = None
    group_margin: float | None = None
    task_margin: float | None = None
    seed: int | None = None
    mutant: str | None = None
    kernels: Literal["jnp", "pallas"] = "jnp"
