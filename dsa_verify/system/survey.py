"""A survey: the same random workloads under every wiring, against the reference and against each other."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from dsa_verify.system.judge import Judged, judged
from dsa_verify.system.wirings import FAST, WIRINGS, Wiring
from dsa_verify.system.workloads import Workload, Wrong, decoder_workload


@dataclass
class Line:
    """What a wiring made of its workloads: counts of looks and excuses (see `Judged`), and the engine's of steps, hits,
    evictions and preemptions. same: requests that answered as under the twin; ties: that left it at a near-tie."""

    wiring: str
    workloads: int = 0
    looks: int = 0
    excused: int = 0
    same: int = 0
    ties: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    engine: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.wiring}: {self.workloads} workloads, {self.looks} logits compared, {self.excused} excused, "
            f"{self.same} answers as the twin's, {self.ties} near-ties; {dict(self.modes)}, {dict(self.engine)}; "
            f"{self.seconds:.0f} s"
        )


def survey(
    seeds: Sequence[int], names: Iterable[str] = tuple(WIRINGS), slow: int = 20, tell: Callable[[str], None] = print
) -> list[Line]:
    """Plays the workloads of `seeds` under each wiring; of those with Pallas kernels, every `slow`-th.

    Raises `Wrong` for the first workload that anything rejects; tells each line as it is done.
    """
    lines, found = [], {}
    for name in names:
        line, start = Line(name), time.perf_counter()
        for seed in seeds if name in FAST else seeds[::slow]:
            _add(line, WIRINGS[name], decoder_workload(seed), f"{name}, workload {seed}", found)
        line.seconds = time.perf_counter() - start
        tell(str(line))
        lines.append(line)
    return lines


def _add(line: Line, wiring: Wiring, work: Workload, where: str, known: dict[tuple[Wiring, int], Judged]) -> None:
    """One workload under a wiring, and under its twin unless that is known."""
    seed = work.config.page_seed or 0
    found = known[wiring, seed] = judged(wiring, work)
    for check, reason in found.rejected.items():
        raise Wrong(f"{where}: {check}: {reason}")
    assert found.played is not None
    line.workloads += 1
    line.looks, line.excused = line.looks + found.looks, line.excused + found.excused
    line.modes.update(found.modes)
    report = asdict(found.played.report)
    line.engine.update({name: report[name] for name in ("hit_tokens", "evicted_pages", "preemptions")})
    if wiring.twin is None:
        return
    twin = known.get((wiring.twin, seed)) or judged(wiring.twin, work)
    told, ties = differences(found, twin)
    for words in told:
        raise Wrong(f"{where}: {words}")
    line.same, line.ties = line.same + len(found.played.ends) - ties, line.ties + ties


def differences(one: Judged, other: Judged) -> tuple[list[str], int]:
    """Requests that answered otherwise in two plays of a workload, and how many more left the other at a near-tie.

    A token may differ where the best two logits are no farther apart than both sides' rounding, or where a choice was
    excused; all that follows may then differ too.
    """
    assert one.played is not None and other.played is not None
    told, ties, near = [], 0, one.budget + other.budget
    for number, end in sorted(one.played.ends.items()):
        due = other.played.ends[number]
        places = [at for at, (a, b) in enumerate(zip(end.tokens, due.tokens, strict=False)) if a != b]
        if not places and len(end.tokens) == len(due.tokens):
            continue
        gap = due.gaps[places[0]] if places else None
        if (gap is not None and gap <= near) or one.excused or other.excused:
            ties += 1
        else:
            told.append(f"request {number} answered {end.tokens}, under the twin {due.tokens}")
    return told, ties
