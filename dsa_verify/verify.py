"""The whole story of one (provider, surface, scenario); read this first.

A scenario makes a batch. The provider's kernel runs on it, before the oracle does, so that no answer can be read from
reused memory: once more the same, once with eager copies, once in other dirty memory. The oracle says what the answer
is. Each check looks at all of it and gives a verdict.
"""

import time
from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np

from dsa_verify import oracle
from dsa_verify.batch import Batch, Scenario
from dsa_verify.batch.poison import neighbours_changed, repoisoned
from dsa_verify.checks import CHECKS, checks_for
from dsa_verify.errors import NotSimulated, ProviderError, RuntimeUnsupported
from dsa_verify.evidence import Evidence, Result, Run, Verdict
from dsa_verify.kernels.contract import Kernel, Provider, Surface, check_call


def verify(
    surface: Surface, provider: Provider, scenario: Scenario, only: Collection[str] = tuple(CHECKS)
) -> tuple[Result, ...]:
    """Run one kernel on one scenario and judge it by every check that applies to its surface, or by `only` some.

    A kernel that raises, or returns something unusable, is rejected by all of them with its message; one that is absent
    or out of its stated limits is not verified, with the reason.
    """
    start = time.perf_counter()
    applicable = checks_for(attends=surface.attends, selects=surface.selects, writes=surface.writes)
    names = tuple(name for name in applicable if name in only)
    try:
        verdicts = judge(surface, provider, scenario, names)
    except ProviderError as error:
        verdicts = dict.fromkeys(names, Verdict.rejected(str(error)))
    except NotSimulated as error:
        verdicts = dict.fromkeys(names, Verdict.not_verified(f"interpret mode cannot simulate it: {error}"))
    seconds = (time.perf_counter() - start) / max(1, len(names))
    reproduce = f"dsa-verify parity --provider {provider.name} --surface {surface.name} --scenario {scenario.name}"
    return tuple(
        Result(provider.name, surface.name, scenario.name, name, verdict, seconds, reproduce)
        for name, verdict in verdicts.items()
    )


def judge(surface: Surface, provider: Provider, scenario: Scenario, names: tuple[str, ...]) -> dict[str, Verdict]:
    """The verdict of each named check. Raises `ProviderError` when the kernel gives nothing that could be judged."""
    evidence = gather(surface, provider, scenario, {run for name in names for run in CHECKS[name].runs})
    if isinstance(evidence, str):
        return dict.fromkeys(names, Verdict.not_verified(evidence))
    return {name: CHECKS[name].judge(evidence) for name in names}


def batch_of(scenario: Scenario) -> Batch:
    """The batch of a scenario; where `topk_pages` is the indexer's, it is the oracle's own selection."""
    batch = scenario.build()
    if scenario.selection == "indexer":
        batch = batch.replace(topk_pages=oracle.selection(batch, pages=True).best)
    return batch


def gather(surface: Surface, provider: Provider, scenario: Scenario, wanted: Collection[str]) -> Evidence | str:
    """What the kernel answers in its base run and the `wanted` others, beside the oracle; or why it is not asked.

    Raises `ProviderError` when the kernel gives nothing that could be judged.
    """
    batch = batch_of(scenario)
    kernel = provider.kernels.get(surface.name)
    reason = _out_of_reach(surface, provider, kernel, batch)
    if kernel is None or reason is not None:
        return reason or "not provided"
    finite = kernel.promise.finite_memory
    batch = repoisoned(batch, finite=True, seed=0) if finite else batch
    runs = {"base": execute(surface, kernel, batch)}
    if "again" in wanted:
        runs["again"] = execute(surface, kernel, batch)
    if "dirty" in wanted:
        dirty = neighbours_changed(repoisoned(batch, finite=not finite), keep=np.arange(batch.seqs) % 2 == 0)
        runs["dirty"] = execute(surface, kernel, dirty)
    if "eager" in wanted and not on_device():
        runs["eager"] = execute(surface, kernel, batch, dma="eager")
    return Evidence(batch, oracle.expected(surface.name, batch), runs, kernel.promise)


def _out_of_reach(surface: Surface, provider: Provider, kernel: Kernel | None, batch: Batch) -> str | None:
    """Why this case cannot be verified, if it cannot."""
    if surface.decode_only and batch.mode != "decode":
        return "this surface takes decode batches only"
    if kernel is None:
        return provider.missing.get(surface.name, f"{provider.name} does not provide {surface.name}")
    return kernel.limits(batch)


def execute(surface: Surface, kernel: Kernel, batch: Batch, dma: Literal["on_wait", "eager"] = "on_wait") -> Run:
    """Call a kernel on the arrays that its surface's contract names.

    Raises `ContractError` when the batch breaks the contract, `ProviderError` when the kernel raises or returns
    something other than the contract's outputs.
    """
    from dsa_verify import runtime

    arrays = {name: getattr(batch, name) for name in surface.arrays}
    statics = {name: getattr(batch, name) for name in surface.statics}
    axes = check_call(surface, arrays, statics)
    try:
        seen = runtime.run(kernel.fn, arrays, statics, dma=dma, donate=surface.donated)
    except (NotSimulated, RuntimeUnsupported):
        raise
    except Exception as error:
        raise ProviderError(f"the kernel raised {type(error).__name__}: {error}") from error
    if seen.outputs is None:
        return Run(None, seen.findings)
    return Run(_named(surface, seen.outputs, {**axes, **_batch_axes(batch)}), seen.findings)


def _batch_axes(batch: Batch) -> dict[str, int]:
    return {"index_topk": batch.index_topk, "k_pages": batch.k_pages, "heads": batch.ql_nope.shape[1]}


def _named(surface: Surface, outputs: tuple, axes: Mapping[str, int]) -> dict[str, np.ndarray]:
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
    return named


def on_device() -> bool:
    """Whether kernels run natively on a TPU rather than in interpret mode."""
    import jax

    return jax.default_backend() == "tpu"
