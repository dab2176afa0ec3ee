"""Verifies one (provider, surface, scenario), from its batch to the verdict of every check; read this first.

A scenario makes a batch. The provider's kernel runs on it, before the oracle does, so that no answer can be read from
reused memory: once more the same, once with eager copies, once in other dirty memory, and on every variant of the batch
that a check asks for. The oracle says what the answer is. Each check looks at all of it and gives a verdict.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from dsa_verify import oracle
from dsa_verify.batch import Batch, Scenario
from dsa_verify.batch.poison import neighbours_changed, repoisoned
from dsa_verify.batch.variants import Variant
from dsa_verify.checks import CHECKS, checks_for, invariances_for
from dsa_verify.contract import Kernel, Provider, Surface, check_call, surface_named
from dsa_verify.errors import NotSimulated, OutOfReach, ProviderError, RuntimeUnsupported
from dsa_verify.evidence import Evidence, Rerun, Result, Run, Subject, Verdict


def verify(
    surface: Surface,
    provider: Provider,
    scenario: Scenario,
    only: Collection[str] = tuple(CHECKS),
    subject: Subject | None = None,
) -> tuple[Result, ...]:
    """Run one kernel on one scenario and judge it by every check that applies to them, or by `only` some of these.

    A kernel that raises, or returns something unusable, is rejected by all of them with its message; one that is absent
    or out of its stated limits is not verified, with the reason. subject: how the results name what they are about.
    """
    start = time.perf_counter()
    applicable = checks_for(attends=surface.attends, selects=surface.selects, writes=surface.writes)
    applicable += invariances_for(surface.name, scenario.name, scenario.tier)
    names = tuple(name for name in applicable if name in only)
    verdicts = verdicts_or_why(names, lambda: judge(surface, provider, scenario, names))
    subject = subject or Subject.of(provider.name, surface.name, scenario.name)
    kernel = tiled_for(provider, scenario).get(surface.name)
    return subject.results(verdicts, time.perf_counter() - start, tiles=kernel.tiles if kernel else "")


def verdicts_or_why(names: Collection[str], judged: Callable[[], dict[str, Verdict]]) -> dict[str, Verdict]:
    """The verdicts of `judged()`; where it raises instead, one for all the named checks, with the reason."""
    try:
        return judged()
    except ProviderError as error:
        verdict = Verdict.rejected(str(error))
    except OutOfReach as error:
        verdict = Verdict.not_verified(str(error))
    except NotSimulated as error:
        verdict = Verdict.not_verified(f"interpret mode cannot simulate it: {error}")
    return dict.fromkeys(names, verdict)


def judge(surface: Surface, provider: Provider, scenario: Scenario, names: tuple[str, ...]) -> dict[str, Verdict]:
    """The verdict of each named check, save those that ask for a variant which the batch does not have, or for a
    promise that the kernel does not make.

    Raises `ProviderError` when the kernel gives nothing that could be judged, `OutOfReach` when it is not asked.
    """
    evidence = gather(surface, provider, scenario, names)
    asked = (name for name in names if CHECKS[name].variant is None or name in evidence.reruns)
    return {name: CHECKS[name].verdict(evidence) for name in asked if CHECKS[name].promised(evidence.promise)}


def batch_of(scenario: Scenario) -> Batch:
    """The batch of a scenario; where `topk_pages` is the indexer's, it is the oracle's own selection."""
    batch = scenario.build()
    if scenario.selection == "indexer":
        batch = batch.replace(topk_pages=oracle.selection(batch, pages=True).best)
    return batch


def gather(surface: Surface, provider: Provider, scenario: Scenario, names: Collection[str]) -> Evidence:
    """What the kernel answers in its base run and those that the named checks look at, beside the oracle.

    Raises `ProviderError` when the kernel gives nothing that could be judged, `OutOfReach` when it is not asked.
    """
    batch = batch_of(scenario)
    provider = replace(provider, kernels=tiled_for(provider, scenario))
    kernel = kernel_for(surface, provider, [batch])
    finite = kernel.promise.finite_memory
    batch = repoisoned(batch, finite=True, seed=0) if finite else batch
    wanted = {run for name in names for run in CHECKS[name].runs}
    runs = {"base": execute(surface, kernel, batch)}
    if "again" in wanted:
        runs["again"] = execute(surface, kernel, batch)
    if "dirty" in wanted:
        dirty = neighbours_changed(repoisoned(batch, finite=True), keep=np.arange(batch.seqs) % 2 == 0)
        runs["dirty"] = execute(surface, kernel, dirty)
    if "eager" in wanted and not on_device():
        runs["eager"] = execute(surface, kernel, batch, dma="eager")
    variants = {name: variant(batch) for name in names if (variant := CHECKS[name].variant) is not None}
    reruns = {name: rerun(surface, provider, variant) for name, variant in variants.items() if variant is not None}
    return Evidence(batch, oracle.expected(surface.name, batch), runs, kernel.promise, reruns, surface.reads)


def tiled_for(provider: Provider, scenario: Scenario) -> Mapping[str, Kernel]:
    """A provider's kernels at the tiles that a scenario asks for: those they serve with, in the tier `production`."""
    if scenario.tier != "production":
        return provider.kernels
    return {name: kernel.production or kernel for name, kernel in provider.kernels.items()}


def rerun(surface: Surface, provider: Provider, variant: Variant) -> Rerun:
    """Run a variant step by step, each step on the cache that the one before it left."""
    surface = surface if variant.surface is None else surface_named(variant.surface)
    batches = [step.batch for step in variant.steps]
    try:
        kernel = kernel_for(surface, provider, batches)
    except OutOfReach as error:
        return Rerun(variant, absent=str(error))
    if variant.surface is not None and kernel.promise.finite_memory:
        batches = [repoisoned(batch, finite=True, seed=0) for batch in batches]
    runs: list[Run] = []
    pools: dict[str, np.ndarray] = {}
    try:
        reference = None if variant.reference is None else execute(surface, kernel, variant.reference)
        for batch in batches:
            runs.append(execute(surface, kernel, batch, pools=pools))
            pools |= {name: runs[-1].outputs[name] for name in surface.pools if runs[-1].outputs is not None}
    except ProviderError as error:
        return Rerun(variant, problem=str(error))
    exact = () if variant.reference is None else (batches[0], variant.reference)
    answers = tuple(oracle.expected(surface.name, batch).attention for batch in exact)
    return Rerun(variant, tuple(runs), reference, answers, kernel.promise)


def kernel_for(surface: Surface, provider: Provider, batches: Sequence[Batch]) -> Kernel:
    """The kernel that takes all these batches. Raises `OutOfReach` with the reason if there is none."""
    if surface.decode_only and any(batch.mode != "decode" for batch in batches):
        raise OutOfReach("this surface takes decode batches only")
    kernel = provider.kernels.get(surface.name)
    if kernel is None:
        raise OutOfReach(provider.missing.get(surface.name, f"{provider.name} does not provide {surface.name}"))
    for batch in batches:
        if reason := kernel.limits(batch):
            raise OutOfReach(reason)
    return kernel


def execute(
    surface: Surface,
    kernel: Kernel,
    batch: Batch,
    dma: Literal["on_wait", "eager"] = "on_wait",
    pools: Mapping[str, np.ndarray] | None = None,
) -> Run:
    """Call a kernel on the arrays that its surface's contract names; on other `pools` than the batch's where given.

    Raises `ContractError` when the batch breaks the contract, `ProviderError` when the kernel raises or returns
    something other than the contract's outputs.
    """
    from dsa_verify import runtime

    arrays = dict(pools or {})
    arrays |= {name: batch.operand(name, name in surface.pools) for name in surface.arrays if name not in arrays}
    statics = {name: getattr(batch, name) for name in surface.statics}
    axes = check_call(surface, arrays, statics)
    try:
        seen = runtime.run(kernel.fn, arrays, statics, dma=dma, donate=surface.pools)
    except (NotSimulated, RuntimeUnsupported):
        raise
    except Exception as error:
        raise ProviderError(f"the kernel raised {type(error).__name__}: {error}") from error
    if seen.outputs is None:
        return Run(None, seen.findings)
    return Run(
        named(surface, seen.outputs, {**axes, **batch_axes(batch)}), seen.findings, None if on_device() else seen.dma
    )


def batch_axes(batch: Batch) -> dict[str, int]:
    return {"index_topk": batch.index_topk, "k_pages": batch.k_pages, "heads": batch.ql_nope.shape[1]}


def named(surface: Surface, outputs: tuple, axes: Mapping[str, int]) -> dict[str, np.ndarray]:
    if len(outputs) != len(surface.outputs):
        raise ProviderError(
            f"the kernel returned {len(outputs)} outputs, {surface.name} has {len(surface.outputs)}: "
            f"{', '.join(surface.outputs)}"
        )
    named = dict(zip(surface.outputs, outputs, strict=True))
    for name, value in named.items():
        if value is None and name in surface.optional:
            continue
        wanted = tuple(axes[axis] for axis in surface.outputs[name])
        if value is None or value.shape != wanted:
            found = "nothing" if value is None else f"shape {value.shape}"
            raise ProviderError(f"the kernel returned {found} for {name}, expected {wanted} {surface.outputs[name]}")
    return {name: value for name, value in named.items() if value is not None}


def on_device() -> bool:
    """Whether kernels run natively on a TPU rather than in interpret mode."""
    import jax

    return jax.default_backend() == "tpu"
