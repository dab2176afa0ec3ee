"""Invariance: the same work asked for in another way gives the same answer; one check for each way.

Every check of this file is named `invariance:<way>`. It asks for a variant of the batch (`dsa_verify.batch.variants`),
which `verify` runs, and compares the two runs of the kernel with each other; the oracle has no part in it, save for
the budget. What is compared bit for bit, and why it may be:

  scaling                            a power of two commutes with every rounding, in whatever order sums run
  pages, prefix                      a sum's order does not depend on where pages lie, if the provider promises so
  split, composition, order, padding a sum runs over a query's own keys in their own order, if the provider promises so
  the cache                          rows are copied, not computed
  shift, dense, qblock, decode       never: other roundings, or another kernel

Where the promise (`Promise.summation`) is missing, and where nothing is said to be exact, the two runs may be as far
apart as the sum of their error budgets (`dsa_verify.checks.tolerance`), index scores as their rounding bands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dsa_verify.batch import variants
from dsa_verify.batch.batch import Batch
from dsa_verify.batch.variants import Variant
from dsa_verify.checks.compare import same
from dsa_verify.evidence import Evidence, Verdict

PREFIX = "invariance:"


def split(evidence: Evidence) -> Verdict:
    """Compare a chunk in one step with the same chunk in two or three.

    What it demands: the same results and cache when a chunk is cut inside a page and on a page boundary, each step
      run on the cache that the one before it wrote, with later index keys not there yet.
    Why it matters: chunked prefill must not change an answer; a scheduler cuts where it likes.
    How it could be fooled: by chunks of one token, and by a history so long that the cut pages are never selected.
    """
    return _judge(evidence, "split", "when its chunk comes in several steps", _own_order(evidence))


def composition(evidence: Evidence) -> Verdict:
    """Compare every request among others with the same request alone, in the first sequence slot of the same bucket.

    What it demands: the same results and cache when the requests of a step come one after another.
    Why it matters: who else is being served is no reason for another answer.
    How it could be fooled: by requests of equal length, whose offsets agree; the scenarios' differ.
    """
    return _judge(evidence, "composition", "when its request is alone in the step", _own_order(evidence))


def order(evidence: Evidence) -> Verdict:
    """Compare a step with the same step in which every request has moved to the next slot.

    What it demands: the same results and cache.
    Why it matters: offsets into ragged arrays are sums over the requests before; a wrong one is right for the first.
    How it could be fooled: by equal requests.
    """
    return _judge(evidence, "order", "when requests change places", _own_order(evidence))


def padding(evidence: Evidence) -> Verdict:
    """Compare a step with the same step in which a padding sequence stands before every request.

    What it demands: the same results and cache, wherever the bucket's spare slots are.
    Why it matters: engines pad at the end, between groups, and on every data shard.
    How it could be fooled: by a bucket without spare slots, which gives no variant.
    """
    return _judge(evidence, "padding", "when padding stands before each request", _own_order(evidence))


def pages(evidence: Evidence) -> Verdict:
    """Compare a step with the same step whose pages lie elsewhere in the pool, all but page 0.

    What it demands: the same results, and every row at its moved slot.
    Why it matters: the allocator decides where pages lie, and no result may know it.
    How it could be fooled: by nothing that the kernel can see: tables, slots and both caches move together.
    """
    return _judge(evidence, "pages", "when pages lie elsewhere in the pool", _any_place(evidence))


def prefix(evidence: Evidence) -> Verdict:
    """Compare requests that share physical pages with the same requests on private copies, as if recomputed.

    What it demands: the same results; every copy and every original hold the same rows in the end.
    Why it matters: a prefix hit is an optimisation; what one request writes must not reach those that share with it.
    How it could be fooled: by a kernel that copies shared pages itself, which no contract allows.
    """
    return _judge(evidence, "prefix", "when no page is shared", _any_place(evidence))


def scaling(evidence: Evidence) -> Verdict:
    """Compare with latents times 4 and latent queries divided by 4; index weights times 1024.

    What it demands: outputs exactly 4 times as large, the same selection.
    Why it matters: it finds clipping, finite stand-ins for minus infinity and narrow formats, at sizes that inputs
      of unit variance never reach.
    How it could be fooled: by limits beyond the scaled values.
    """
    return _judge(evidence, "scaling", "when latents are 4 times and index weights 1024 times as large", True)


def shift(evidence: Evidence) -> Verdict:
    """Compare a step whose last rotary lane adds a large negative constant to every logit with one where it adds 0.

    What it demands: the same outputs, and an lse moved by the constant, within the budgets of both runs.
    Why it matters: softmax knows differences only. A running maximum that starts at 0, or is never subtracted, is
      right for logits around 0 and loses all weights below -104.
    How it could be fooled: by logits rounded so coarsely that the budget covers everything.
    """
    return _judge(evidence, "shift", "when a constant is added to every logit", False)


def dense(evidence: Evidence) -> Verdict:
    """Compare a sparse kernel with the provider's dense MLA, for queries whose selection is the whole prefix.

    What it demands: the same outputs within the budgets of both kernels, the same cache bit for bit.
    Why it matters: prompts below the budget must not notice that sparse prefill is on.
    How it could be fooled: by a fault that both kernels share.
    """
    return _judge(evidence, "dense", "beside dense_mla", False)


def qblock(evidence: Evidence) -> Verdict:
    """Compare the query-block kernel with the provider's per-query kernel on the same step.

    What it demands: the same outputs within the budgets of both kernels, the same cache bit for bit.
    Why it matters: which of the two runs is a switch for speed.
    How it could be fooled: by a fault that both kernels share.
    """
    return _judge(evidence, "qblock", "beside sparse_mla_prefill", False)


def decode(evidence: Evidence) -> Verdict:
    """Compare the decode kernel with the per-query prefill kernel on the same tokens, each a one-token extend.

    What it demands: the same outputs within the budgets of both kernels where the new token's page is selected, the
      same cache bit for bit.
    Why it matters: a decode is the last row of a prefill; mixed batches treat it as one.
    How it could be fooled: by a fault that both kernels share.
    """
    return _judge(evidence, "decode", "beside sparse_mla_prefill", False)


def _judge(evidence: Evidence, name: str, when: str, exact: bool) -> Verdict:
    return same(evidence, evidence.reruns[PREFIX + name], when, exact=exact)


def _own_order(evidence: Evidence) -> bool:
    return evidence.promise.summation == "sequence"


def _any_place(evidence: Evidence) -> bool:
    return evidence.promise.summation in ("sequence", "step")


@dataclass(frozen=True)
class Invariance:
    """One way to ask for the same work.

    surfaces: those on which it makes sense. quick: globs over the quick scenarios that are there for it; the other
    scenarios of that tier do without, so that the tier stays within minutes.
    """

    judge: Callable[[Evidence], Verdict]
    variant: Callable[[Batch], Variant | None]
    surfaces: tuple[str, ...]
    quick: tuple[str, ...]


_DECODE = "sparse_mla_decode"
_SPARSE = ("sparse_mla_prefill", "sparse_mla_prefill_qblock")
_ATTEND = ("dense_mla", _DECODE, *_SPARSE)
_SELECT = ("index_topk", "index_page_topk")
_EVERY = (*_SELECT, *_ATTEND, "cache_write", "indexer")
_CHUNKS = tuple(surface for surface in _EVERY if surface != _DECODE)

# Requests of unequal length, some without new tokens, decodes beside chunks, and a decode batch without room.
_RAGGED = (
    "several-unequal-p16-f32",
    "several-zero-length-*",
    "mixed-decode-and-chunk-p64-*",
    "decode-page-edges-d16-*",
)

INVARIANCES: dict[str, Invariance] = {
    PREFIX + name: invariance
    for name, invariance in {
        "split": Invariance(split, variants.split, _CHUNKS, ("chunk-*", "single-prefill-*")),
        "composition": Invariance(composition, variants.composition, _EVERY, _RAGGED),
        "order": Invariance(order, variants.order, _EVERY, (*_RAGGED, "several-*", "mixed-*")),
        "padding": Invariance(padding, variants.padding, _EVERY, ("padding-*",)),
        "pages": Invariance(pages, variants.pages, _EVERY, ("table-*", "single-*")),
        "prefix": Invariance(prefix, variants.prefix, _EVERY, ("prefix-*", "decode-shared-prefix-*")),
        # What follows is a matter of one query and its keys: one request is enough.
        "scaling": Invariance(scaling, variants.scaling, (*_SELECT, *_ATTEND), ("single-*", "decode-one-*")),
        "shift": Invariance(shift, variants.shift, _ATTEND, ("single-*", "decode-one-*")),
        # Another kernel must be compiled for these, so one bucket of each dtype, and one of decodes.
        "dense": Invariance(
            dense, variants.dense, (_DECODE, *_SPARSE), ("budget-*-p16-*", "budget-*-p64-*", "decode-page-edges-d16-*")
        ),
        "qblock": Invariance(
            qblock, variants.qblock, _SPARSE[1:], ("single-*-p16-*", "several-*-p64-*", "masked-rows-*")
        ),
        "decode": Invariance(decode, variants.decode, (_DECODE,), ("decode-*-d16-*", "masked-decode-*")),
    }.items()
}


def invariances_for(surface: str, scenario: str, tier: str) -> tuple[str, ...]:
    """Names of the invariance checks that are made on a surface and scenario; its batch may still give no variant.

    Quick scenarios take those that they are there for, full ones take all, soak scenarios (`soak:SEED:INDEX...`) take
    turns by their index, which one that was made smaller keeps: a soak is after many scenarios.
    """
    if tier == "quick":
        taken = [name for name, way in INVARIANCES.items() if any(fnmatchcase(scenario, glob) for glob in way.quick)]
    elif tier == "soak":
        taken = [tuple(INVARIANCES)[int(scenario.split(":")[2]) % len(INVARIANCES)]]
    else:
        taken = list(INVARIANCES)
    return tuple(name for name in taken if surface in INVARIANCES[name].surfaces)
