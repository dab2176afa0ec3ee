"""What crosses rooms: the oracle's answers, kernel runs, verdicts, results; as frozen dataclasses of NumPy data."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, Protocol

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.variants import Variant
from dsa_verify.contract import Promise

Status = Literal["accepted", "rejected", "not verified"]

SIGNIFICANT_BITS = {"float32": 24, "bfloat16": 8, "float16": 11, "float64": 53}


def unit_roundoff(dtype: object) -> float:
    """Largest relative error of rounding to nearest in a float dtype."""
    return 2.0 ** -SIGNIFICANT_BITS[str(dtype)]


@dataclass(frozen=True)
class Attention:
    """The answer for some queries, and the conditioning of each element.

    out: f64[queries, heads, kv_lora_rank]; a query that may attend nothing gets zeros.
    lse: f64[queries, heads]: natural log of the sum of exp of the scaled logits; -inf for such a query.
    spread: f64 like out: sqrt(sum_j (p_j v_j)^2), the scale of independent errors in the weights p.
    weight: f64 like out: sum_j |p_j v_j|, the scale of the worst case.
    logit: f64[queries, heads]: largest |s_j| + sm_scale * sqrt(sum_d (q_d k_jd)^2) over attended j.
    gain: f64[queries, heads]: sqrt(sum_j (p_j <v_j, out>)^2) / |out|^2, how errors in p stretch a whole row.
    terms: i[queries]: number of attended tokens.
    """

    out: np.ndarray
    lse: np.ndarray
    spread: np.ndarray
    weight: np.ndarray
    logit: np.ndarray
    gain: np.ndarray
    terms: np.ndarray


@dataclass(frozen=True)
class ScoredCandidates:
    """Scores of every candidate (positions or pages) for every token, and how many may be kept.

    value: f64[tokens, candidates], -inf where a candidate is not causal; padding tokens have none.
    magnitude: f64 like value: the sum of absolute products that rounding errors are relative to.
    best: i32[tokens, budget], the exact answer, lowest candidate first among equals, -1 at the tail.
    terms: products summed into one score.
    exact: the inputs are such that every dtype computes the scores without rounding.
    error: f64 like value: how far scores may be off because what they come from is computed too; 0 if it is given.
    """

    value: np.ndarray
    magnitude: np.ndarray
    best: np.ndarray
    terms: int
    exact: bool = False
    error: np.ndarray | float = 0.0


@dataclass(frozen=True)
class Keys:
    """The index keys of the new tokens, and what errors of them are relative to.

    value: f64[tokens, index_head_dim], rotated; padding tokens have zeros.
    rounding, arithmetic: f64 like value: a key may be off by the unit roundoff of its dtype times the one and that of
      float32 times the other.
    """

    value: np.ndarray
    rounding: np.ndarray
    arithmetic: np.ndarray


@dataclass(frozen=True)
class Expected:
    """The oracle's answer for one surface: the parts that the surface has."""

    attention: Attention | None = None
    selection: ScoredCandidates | None = None
    cache_kv: np.ndarray | None = None
    keys: Keys | None = None


class Copies(Protocol):
    """Copies between two memory spaces that the runtime counted; see `dsa_verify.runtime`."""

    @property
    def source(self) -> str: ...

    @property
    def destination(self) -> str: ...

    @property
    def bytes(self) -> int: ...


class Finding(Protocol):
    """A fault that the runtime saw, such as a race; see `dsa_verify.runtime`."""

    @property
    def kind(self) -> str: ...

    @property
    def message(self) -> str: ...


Outputs = Mapping[str, np.ndarray]
"""By name in the contract; an optional one that a kernel does not give is absent."""


@dataclass(frozen=True)
class Run:
    """One execution of a kernel: named outputs (None when it failed), what the runtime saw, and the copies that it
    counted (None on a device, which counts none)."""

    outputs: Outputs | None
    findings: tuple[Finding, ...] = ()
    traffic: tuple[Copies, ...] | None = ()


@dataclass(frozen=True)
class Rerun:
    """What a kernel made of a variant of the batch.

    runs: one a step, up to the first that failed. reference: the run of the variant's reference, where it has one.
    attention: the oracle's answers to the step and to the reference, where these are not the base's.
    promise: of the kernel that ran. problem: how it failed. absent: why none could run; there are no runs then.
    """

    variant: Variant
    runs: tuple[Run, ...] = ()
    reference: Run | None = None
    attention: tuple[Attention | None, ...] = ()
    promise: Promise = field(default_factory=Promise)
    problem: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Evidence:
    """All that the checks look at for one (provider, surface, scenario).

    runs: `base`; `again`, the same call; `eager`, with every copy done at once (absent on a device);
      `dirty`, the same step in other dirty memory and with every odd sequence's data changed.
    reruns: by name of the check that asked for the variant.
    reads: which pages of its sequence a token reads on this surface: `causal`, `selected`, `selected and own`, or
      `nothing`.
    """

    batch: Batch
    expected: Expected
    runs: Mapping[str, Run]
    promise: Promise = field(default_factory=Promise)
    reruns: Mapping[str, Rerun] = field(default_factory=dict[str, Rerun])
    reads: Literal["causal", "selected", "selected and own", "nothing"] = "nothing"

    @property
    def base(self) -> Run:
        return self.runs["base"]


@dataclass(frozen=True)
class HeatmapRow:
    """One query token: its place (request -1 is padding), one character a cell, and in words what is wrong with it."""

    request: int
    position: int
    cells: str
    note: str


@dataclass(frozen=True)
class Heatmap:
    """Where a rejection lies: some of the faulty query tokens against positions, pages or heads.

    kind: what cells tell; see `dsa_verify.checks.heatmap` for the characters of each kind.
    column: what a column stands for: `position`, `page` or `head`; `width` of these are one cell.
    faulty, queries: how many query tokens are faulty, of how many; `rows` has the first and last faulty one and some
      between.
    """

    kind: Literal["selection", "share"]
    column: str
    width: int
    faulty: int
    queries: int
    rows: tuple[HeatmapRow, ...]


@dataclass(frozen=True)
class Verdict:
    """What a check decided. `share` is the largest share that was used of what it allows, an error budget unless
    `Check.share_of` says what else; `heatmap` shows where a rejection lies, if it can be shown."""

    status: Status
    reason: str = ""
    share: float | None = None
    heatmap: Heatmap | None = None

    @classmethod
    def accepted(cls, share: float | None = None) -> "Verdict":
        return cls("accepted", share=share)

    @classmethod
    def rejected(cls, reason: str, share: float | None = None) -> "Verdict":
        return cls("rejected", reason, share)

    @classmethod
    def not_verified(cls, reason: str) -> "Verdict":
        return cls("not verified", reason)


@dataclass(frozen=True)
class KnownFailure:
    """One entry.

    id: `surface/scenario-glob/check`; a check of `*` is any.
    reason: what is wrong, in a sentence. smallest: the smallest input that shows it. link: where it was reported.
    when: how kernels must run for it to show, `interpret` or `native`; either when empty.
    provider: whose failure it is; any provider's when empty.
    """

    id: str
    reason: str
    smallest: str
    link: str = ""
    when: str = ""
    provider: str = ""

    def matches(self, result: "Result") -> bool:
        surface, scenario, check = self.id.split("/")
        return (
            self.provider in ("", result.provider)
            and surface == result.surface
            and fnmatchcase(result.scenario, scenario)
            and check in ("*", result.check)
        )


@dataclass(frozen=True)
class Subject:
    """What results are about: a surface of a provider, which is named as the user asked for it, on a scenario; and the
    one command that runs it again."""

    provider: str
    surface: str
    scenario: str
    reproduce: str

    @classmethod
    def of(cls, provider: str, surface: str, scenario: str, options: Sequence[str] = ()) -> "Subject":
        """A subject whose command has these further options."""
        words = ["--provider", provider, "--surface", surface, "--scenario", scenario, *options]
        return cls(provider, surface, scenario, shlex.join(["dsa-verify", "parity", *words]))

    def results(
        self, verdicts: Mapping[str, Verdict], seconds: float = 0.0, broke: str = "", tiles: str = ""
    ) -> "tuple[Result, ...]":
        """One result a check, by its name; the seconds are divided among them."""
        each = seconds / max(1, len(verdicts))
        where = (self.provider, self.surface, self.scenario)
        return tuple(
            Result(*where, check, verdict, each, self.reproduce, broke, tiles=tiles)
            for check, verdict in verdicts.items()
        )


@dataclass(frozen=True)
class Result:
    """One verdict with its coordinates in the run.

    reproduce: the command that runs the case again. broke: the traceback, or the end of the process, where the suite
    itself broke; empty otherwise. known: the known failure that forgave a rejection, and `found`, what was rejected.
    shrunk_from: the scenario of which this one's is a smaller form. tiles: how the kernel divided its work, where its
    provider says so. measured: a golden record's entry of the provider,
    carried by a case's first result.
    """

    provider: str
    surface: str
    scenario: str
    check: str
    verdict: Verdict
    seconds: float = 0.0
    reproduce: str = ""
    broke: str = ""
    known: KnownFailure | None = None
    found: str = ""
    shrunk_from: str = ""
    tiles: str = ""
    measured: Mapping[str, object] = field(default_factory=dict[str, object])
