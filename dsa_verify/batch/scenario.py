"""Scenario: a named recipe of requests that yields a Batch, and what it discriminates."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.indexer import hidden_states, indexer_weights
from dsa_verify.batch.poison import poison_rows, poison_table
from dsa_verify.batch.ragged import slots_of
from dsa_verify.batch.requests import DECODE_PADDING, PADDING, Request, allocate, page_count, page_order
from dsa_verify.batch.values import SELECT, TABLE, Content, Queries, Signal, stream
from dsa_verify.errors import BatchError
from dsa_verify.shapes import LANES, ModelShape, align, shape_named

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Bucket:
    """The static shapes of a step, as a serving engine pads to them; cases of one bucket share a compilation."""

    name: str
    page_size: int
    dtype: str
    tokens: int
    seqs: int
    pages_per_seq: int
    pool_pages: int
    index_topk: int
    shape: str = "mini"

    @property
    def decode(self) -> bool:
        """Whether every sequence slot carries exactly one token."""
        return self.tokens == self.seqs

    @property
    def model(self) -> ModelShape:
        return shape_named(self.shape)


class Values(Protocol):
    """A source of numbers; see `dsa_verify.batch.values`."""

    exact_scores: bool

    def content(self, shape: ModelShape, seed: int, seq: int, kv_len: int, page_size: int) -> Content: ...

    def queries(self, shape: ModelShape, seed: int, seq: int, positions: np.ndarray) -> Queries: ...


@dataclass(frozen=True)
class Scenario:
    """A recipe of requests. `discriminates` says which mistake it is there to expose."""

    name: str
    family: str
    discriminates: str
    requests: tuple[Request, ...]
    bucket: Bucket
    values: Values = field(default_factory=Signal)
    table: str = "shuffled"
    selection: str = "structured"
    """How `topk_pages` is chosen: `structured` draws sinks, local pages and others at random; `indexer` takes the
    oracle's own page selection; `partial` leaves some queries, and one whole request, with nothing selected."""
    seed: int = 0
    tier: str = "quick"
    """quick or full; `production`, whose kernels run at the tiles they serve with; or soak."""

    @property
    def decode(self) -> bool:
        """Whether its batch has mode `decode`: exactly one token in every sequence slot, padding included."""
        return self.bucket.decode and all(r.q_len == 1 for r in self.requests)

    @cached_property
    def padded(self) -> tuple[Request, ...]:
        """The requests, with padding sequences up to the bucket."""
        missing = self.bucket.seqs - len(self.requests)
        if missing < 0:
            raise BatchError(
                f"scenario {self.name}: {len(self.requests)} requests, but bucket {self.bucket.name} "
                f"has {self.bucket.seqs} sequence slots"
            )
        return self.requests + (DECODE_PADDING if self.bucket.decode else PADDING,) * missing

    def build(self) -> Batch:
        """Make the batch. Raises `BatchError` when the recipe does not fit its bucket."""
        return _Builder(self).batch()

    def at(self, bucket: Bucket) -> "Scenario":
        """The same recipe in another bucket."""
        return replace(self, bucket=bucket)


class _Builder:
    """The steps from a recipe to a batch; each method fills one group of the batch's arrays."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.bucket = scenario, scenario.bucket
        self.model, self.seed = scenario.bucket.model, scenario.seed
        self.requests = scenario.padded
        self.dtype = DTYPES[self.bucket.dtype]
        order = page_order(self.bucket.pool_pages, scenario.table, stream(self.seed, TABLE))
        self.pages = allocate(self.requests, self.bucket.page_size, order)
        self.content = self._contents()
        self.cu_q_lens = np.cumsum([0] + [r.q_len for r in self.requests], dtype=np.int32)
        if self.cu_q_lens[-1] > self.bucket.tokens:
            raise BatchError(
                f"scenario {scenario.name}: {self.cu_q_lens[-1]} tokens, but bucket {self.bucket.name} "
                f"has {self.bucket.tokens}"
            )

    def batch(self) -> Batch:
        positions, locs = self._places()
        caches = self._caches(locs)
        return Batch(
            page_size=self.bucket.page_size,
            index_topk=self.bucket.index_topk,
            sm_scale=self.model.sm_scale,
            kv_lens=np.array([r.kv_len for r in self.requests], np.int32),
            cu_q_lens=self.cu_q_lens,
            page_table=self._table(),
            positions=positions,
            out_cache_loc=locs,
            topk_pages=self._selection(positions),
            exact_scores=self.scenario.values.exact_scores,
            indexer=indexer_weights(self.model, self.dtype, self.seed),
            convention=self.model.indexer,
            **caches,
            **self._tokens(),
        )

    def _contents(self) -> list[Content]:
        made: list[Content] = []
        for seq, request in enumerate(self.requests):
            mine = self.scenario.values.content(self.model, self.seed, seq, request.kv_len, self.bucket.page_size)
            if request.shares is not None:
                source, n = made[request.shares], request.shared_tokens
                for name in ("c_kv", "k_pe", "index_k"):
                    getattr(mine, name)[:n] = getattr(source, name)[:n]
            made.append(mine)
        return made

    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        positions = np.full(self.bucket.tokens, -1, np.int32)
        locs = np.full(self.bucket.tokens, -1, np.int32)
        for seq, request in enumerate(self.requests):
            if request.is_padding:
                continue
            new = np.arange(request.history, request.kv_len)
            rows = slice(self.cu_q_lens[seq], self.cu_q_lens[seq + 1])
            positions[rows] = new
            locs[rows] = slots_of(self.pages[seq], request.kv_len, self.bucket.page_size)[new]
        return positions, locs

    def _table(self) -> np.ndarray:
        table = np.zeros((self.bucket.seqs, self.bucket.pages_per_seq), np.int32)
        for seq, pages in enumerate(self.pages):
            if len(pages) > self.bucket.pages_per_seq:
                raise BatchError(
                    f"scenario {self.scenario.name}: request {seq} needs {len(pages)} pages, but bucket "
                    f"{self.bucket.name} has {self.bucket.pages_per_seq} a sequence"
                )
            table[seq, : len(pages)] = pages
        owned = set(np.concatenate(self.pages).tolist())
        poison = [page for page in range(self.bucket.pool_pages) if page not in owned]
        kv_lens = np.array([r.kv_len for r in self.requests])
        beyond = self.bucket.pool_pages + 7
        return poison_table(table, kv_lens, self.bucket.page_size, [*poison, beyond], self.seed)

    def _caches(self, locs: np.ndarray) -> dict[str, np.ndarray]:
        slots = self.bucket.pool_pages * self.bucket.page_size
        width = self.model.latent_width
        latent = poison_rows(slots, width, self.dtype, False, self.seed)
        keys = poison_rows(slots, self.model.index_head_dim, self.dtype, False, self.seed)
        for seq, request in enumerate(self.requests):
            mine, at = self.content[seq], slots_of(self.pages[seq], request.kv_len, self.bucket.page_size)
            latent[at] = latent_rows(mine.c_kv, mine.k_pe, width, self.dtype)
            keys[at] = mine.index_k.astype(self.dtype)
        new = locs[locs >= 0]
        latent[new] = poison_rows(len(new), width, self.dtype, False, self.seed)
        shape = (self.bucket.pool_pages, self.bucket.page_size, -1)
        return {"cache_kv": latent.reshape(shape), "index_cache": keys.reshape(shape)}

    def _tokens(self) -> dict[str, np.ndarray]:
        m, n = self.model, self.bucket.tokens
        dims = {
            "ql_nope": (m.heads, m.kv_lora_rank),
            "q_pe": (m.heads, m.qk_rope_head_dim),
            "index_q": (m.index_n_heads, m.index_head_dim),
            "index_weights": (m.index_n_heads,),
            "new_c_kv": (m.kv_lora_rank,),
            "new_k_pe": (m.qk_rope_head_dim,),
            "hidden": (m.hidden_size,),
            "q_lora": (m.q_lora_rank,),
        }
        made = {
            name: np.full((n, *dim), np.nan, np.float32 if name == "index_weights" else self.dtype)
            for name, dim in dims.items()
        }
        for seq, request in enumerate(self.requests):
            if request.is_padding or request.q_len == 0:
                continue
            rows = slice(self.cu_q_lens[seq], self.cu_q_lens[seq + 1])
            positions = np.arange(request.history, request.kv_len)
            queries = self.scenario.values.queries(m, self.seed, seq, positions)
            for name in ("ql_nope", "q_pe", "index_q", "index_weights"):
                made[name][rows] = getattr(queries, name).astype(made[name].dtype)
            for name, value in hidden_states(m, self.seed, seq, positions).items():
                made[name][rows] = value.astype(self.dtype)
            made["new_c_kv"][rows] = self.content[seq].c_kv[request.history :].astype(self.dtype)
            made["new_k_pe"][rows] = self.content[seq].k_pe[request.history :].astype(self.dtype)
        return made

    def _selection(self, positions: np.ndarray) -> np.ndarray:
        k_pages = page_count(self.bucket.index_topk, self.bucket.page_size)
        chosen = np.full((self.bucket.tokens, k_pages), -1, np.int32)
        for seq, request in enumerate(self.requests):
            if request.is_padding:
                continue
            rng = stream(self.seed, SELECT, seq)
            for token in range(self.cu_q_lens[seq], self.cu_q_lens[seq + 1]):
                pages = _structured_pages(int(positions[token]) // self.bucket.page_size, k_pages, rng)
                if self.scenario.selection == "partial":
                    keep = 0 if seq == 1 or token % 3 == 0 else max(1, len(pages) - 1)
                    pages = pages[:keep]
                chosen[token, : len(pages)] = pages
        return chosen


def latent_rows(c_kv: np.ndarray, k_pe: np.ndarray, width: int, dtype: DTypeLike) -> np.ndarray:
    """Rows of the latent cache, `[c_kv | pad | k_pe | pad]` [n, width], pads zero."""
    at = align(c_kv.shape[1], LANES)
    rows = np.zeros((len(c_kv), width), dtype)
    rows[:, : c_kv.shape[1]] = c_kv.astype(dtype)
    rows[:, at : at + k_pe.shape[1]] = k_pe.astype(dtype)
    return rows


def _structured_pages(own: int, k_pages: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct causal pages in no order: often the sink (page 0), mostly the own page, others at random."""
    likely = [page for page, p in ((0, 0.7), (own, 0.8)) if rng.random() < p]
    others = rng.permutation(own + 1)
    pages = np.unique(np.concatenate([likely[:k_pages], others]).astype(np.int32), return_index=True)
    ordered = pages[0][np.argsort(pages[1], kind="stable")]
    return rng.permutation(ordered[:k_pages])
