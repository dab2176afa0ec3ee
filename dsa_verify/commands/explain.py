"""What the names of the suite mean: the texts of `list` and `show`."""

import inspect

from dsa_verify.batch import Scenario
from dsa_verify.batch.table import FAMILIES, SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.contract import SURFACES, Surface
from dsa_verify.errors import unknown_name
from dsa_verify.kernels.providers import provider_names
from dsa_verify.mutants.kernel import KernelMutant
from dsa_verify.mutants.kinds import title
from dsa_verify.mutants.registry import HANDWRITTEN
from dsa_verify.mutants.source import SourceEdit
from dsa_verify.mutants.system import SystemMutant
from dsa_verify.run.partition import SHARDING


def names() -> dict[str, tuple[str, ...]]:
    """Every name that `dsa-verify list` prints, by kind."""
    return {
        "surfaces": tuple(SURFACES),
        "providers": tuple(provider_names()),
        "scenarios": tuple(SCENARIOS),
        "checks": (*CHECKS, SHARDING),
        "families": FAMILIES,
        "mutants": tuple(HANDWRITTEN),
    }


def explain(name: str) -> str:
    """What a scenario, surface, check, family or handwritten mutant is. Raises `ConfigError` for any other name."""
    if name in SCENARIOS:
        return _scenario(SCENARIOS[name])
    if name in SURFACES:
        return _surface(SURFACES[name])
    if name in CHECKS:
        return f"check {name}\n{inspect.getdoc(CHECKS[name].judge)}"
    if name == SHARDING:
        from dsa_verify.run import sharded_check

        return inspect.getdoc(sharded_check) or ""
    if name in FAMILIES:
        members = (scenario for scenario in SCENARIOS.values() if scenario.family == name)
        return "\n".join([f"family {name}", *(f"  {s.name}: {s.discriminates}" for s in members)])
    if name in HANDWRITTEN:
        return _mutant(HANDWRITTEN[name])
    raise unknown_name("name", name, (*SCENARIOS, *SURFACES, *CHECKS, SHARDING, *FAMILIES, *HANDWRITTEN))


def _scenario(scenario: Scenario) -> str:
    bucket = scenario.bucket
    lines = [
        f"scenario {scenario.name}",
        f"  discriminates  {scenario.discriminates}",
        f"  family         {scenario.family}, tier {scenario.tier}",
        f"  pages          {bucket.page_size} tokens each, {bucket.pages_per_seq} a sequence, "
        f"{bucket.pool_pages} in the pool, table {scenario.table}",
        f"  step           {bucket.tokens} tokens, {bucket.seqs} sequences, {bucket.dtype}, model shape {bucket.shape}",
        f"  index_topk     {bucket.index_topk}, selection {scenario.selection}",
        f"  values         {type(scenario.values).__name__.lower()}, seed {scenario.seed}",
        "  requests",
    ]
    for index, request in enumerate(scenario.padded):
        shared = f", shares {request.shared_tokens} tokens with {request.shares}" if request.shares is not None else ""
        text = "padding" if request.is_padding else f"kv_len {request.kv_len}, q_len {request.q_len}{shared}"
        lines.append(f"    {index}  {text}")
    return "\n".join(lines)


def _mutant(mutant: KernelMutant | SystemMutant) -> str:
    lines = [
        f"mutant {mutant.name}",
        f"  kind           {title(mutant.kind)}",
        f"  broken         {mutant.provider}: {', '.join(mutant.surfaces)}",
        f"  shown by       {mutant.scenario}, check {mutant.check}",
    ]
    change = mutant.change
    if isinstance(change, SourceEdit):
        lines.append(f"  in             {change.module}")
        lines += [f"  - {line}" for line in change.old.splitlines()] + [
            f"  + {line}" for line in change.new.splitlines()
        ]
    return "\n".join(lines)


def _surface(surface: Surface) -> str:
    lines = [f"surface {surface.name}", f"  {surface.summary}", "  inputs"]
    lines += [f"    {name} [{', '.join(axes)}]" for name, axes in surface.arrays.items()]
    lines += [f"    {name} (static, no default)" for name in surface.statics]
    lines.append("  outputs")
    for name, axes in surface.outputs.items():
        lines.append(f"    {name} [{', '.join(axes)}]{' (optional)' if name in surface.optional else ''}")
    lines += ["  decode batches only"] if surface.decode_only else []
    return "\n".join(lines)
