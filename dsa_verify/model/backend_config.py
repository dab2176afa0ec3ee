"""Every switch of the DSA backend, in one frozen object, and the environment variables that set it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsa_verify.errors import ConfigError

Kernels = Literal["pallas", "jnp"]

VARIABLES = {
    "page_topk": "DSA_PAGE_TOPK",
    "indexer_kernel": "DSA_INDEXER_KERNEL",
    "indexer_kernel_prefill": "DSA_INDEXER_KERNEL_PREFILL",
    "prefill_sparse": "DSA_PREFILL_SPARSE",
    "prefill_qblock": "DSA_PREFILL_QBLOCK",
    "query_block": "DSA_PREFILL_QBLOCK_QB",
}
"""SGLang-JAX's environment variables by the field that each sets."""


@dataclass(frozen=True)
class BackendConfig:
    """Every switch of the backend.

    page_topk: pages a decode keeps, chosen by page score; 0 for `index_topk` tokens and the pages they lie in.
    indexer_kernel: token top-k of decodes by the Pallas kernel instead of jnp; the page budget goes before it.
    indexer_kernel_prefill: page top-k of prefills by the Pallas kernel instead of jnp.
    prefill_sparse: sparse attention in extend and mixed steps. prefill_qblock: by blocks of `query_block` queries that
      share the union of their pages, instead of query by query.
    kernels: whose attention and cache writes run.
    granularity: `token` attends exactly the `index_topk` chosen tokens in every mode, as the published models do. It is
      there to be compared with them: jnp only, and no kernel does it.
    """

    page_topk: int = 0
    indexer_kernel: bool = False
    indexer_kernel_prefill: bool = False
    prefill_sparse: bool = False
    prefill_qblock: bool = True
    query_block: int = 256
    kernels: Kernels = "pallas"
    granularity: Literal["page", "token"] = "page"

    def __post_init__(self) -> None:
        if self.granularity == "token" and self.kernels != "jnp":
            raise ConfigError("granularity 'token' needs kernels 'jnp': the Pallas kernels attend whole pages")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], kernels: Kernels = "pallas") -> "BackendConfig":
        """The configuration that SGLang-JAX's variables ask for; raises `ConfigError` for one that is no number."""
        asked: dict[str, Any] = {}
        for name, variable in VARIABLES.items():
            text = environment.get(variable)
            if text is not None and not text.strip().isdigit():
                raise ConfigError(f"{variable} is {text!r}, expected a number that is not negative")
            if text is not None:
                asked[name] = type(getattr(cls, name))(int(text))  # a switch is on for any number but 0
        return cls(kernels=kernels, **asked)
