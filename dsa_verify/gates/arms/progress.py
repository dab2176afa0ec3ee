"""How far a gate is, on stderr: a bar for each arm with the time left, or a line now and then without a terminal."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dsa_verify.gates.records import Answer

OnAnswerOf = Callable[[str, Answer], None]
"""What is called with the name of an arm and each of its answers."""
EVERY_S = 15.0
"""Seconds between lines where stderr is no terminal."""


@contextmanager
def progress(arms: Sequence[str], total: int) -> Iterator[OnAnswerOf]:
    """Yields what to call with an arm's name and each of its answers; `total`: questions of each arm at most."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    counts, missing, last = dict.fromkeys(arms, 0), dict.fromkeys(arms, 0), time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        rows = {arm: bars.add_task(arm, total=total) for arm in arms}

        def tell(arm: str, answer: Answer) -> None:
            nonlocal last
            counts[arm] += 1
            missing[arm] += answer.text is None
            described = arm + (f", {missing[arm]} missing" if missing[arm] else "")
            bars.update(rows[arm], completed=counts[arm], description=described)
            if not console.is_terminal and time.monotonic() - last > EVERY_S:
                last = time.monotonic()
                counted = ", ".join(f"{name} {count}/{total}" for name, count in counts.items() if count)
                print(f"gate: {counted}", file=sys.stderr, flush=True)

        yield tell
