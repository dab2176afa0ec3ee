"""What a gate of a given size can show: detectable margins, documents and repeats needed."""

import math
from dataclasses import dataclass

from scipy import stats

from dsa_verify.gates.statistics.rule import Rule


@dataclass(frozen=True)
class Study:
    """A planned run. tasks: in the macro mean. group: tasks in a group. alpha: one-sided. power: at no true loss."""

    tasks: int = 16
    group: int = 3
    alpha: float = Rule.alpha
    power: float = Rule.power

    @property
    def _reach(self) -> float:
        """Standard errors between zero and a margin that is shown with the stated power."""
        return float(stats.norm.isf(self.alpha) + stats.norm.ppf(self.power))

    def detectable(self, sd: float, documents: float, tasks: int = 1) -> float:
        """The smallest margin that a mean over `tasks` tasks of `documents` documents each can show.

        sd: of the paired difference of one document.
        """
        return self._reach * sd / math.sqrt(documents * tasks)

    def detectable_by_each(self, sd: float, documents: float) -> float:
        """The smallest margin that every single task can show, all at once with the stated power."""
        each = stats.norm.isf(self.alpha) + stats.norm.ppf(self.power ** (1 / self.tasks))
        return float(each) * sd / math.sqrt(documents)

    def documents(self, sd: float, margin: float, tasks: int = 1) -> int:
        """Documents a task that show `margin` for a mean over `tasks` tasks."""
        return math.ceil((self._reach * sd / margin) ** 2 / tasks)

    def growth(self, difference: float, variance: float, margin: float) -> float:
        """Times as many documents that would show a mean above -margin, were it the estimate; inf if it is not above.

        variance: of the estimate.
        """
        room = difference + margin
        return max(1.0, self._reach**2 * variance / room**2) if room > 0 else math.inf

    def row(self, sd: float, documents: int) -> tuple[float, float, float, float]:
        """Detectable by one task, a group, the macro mean, and by every task at once."""
        return (
            self.detectable(sd, documents),
            self.detectable(sd, documents, self.group),
            self.detectable(sd, documents, self.tasks),
            self.detectable_by_each(sd, documents),
        )


def paired_sd(between: float, noise: float, repeats: int = 1) -> float:
    """SD of a document's paired difference, averaged over repeats.

    between: SD of the true difference between documents. noise: SD of one arm's score from run to run.
    """
    return math.sqrt(between**2 + 2 * noise**2 / repeats)


def repeats_for(variance: float, noise: float, growth: float) -> int | None:
    """Repeats that do what `growth` times the documents would; None if no number can.

    variance: of the estimate from one repeat. noise: the part of it that dense against dense shows as well.
    """
    noise = min(noise, variance)
    room = variance / growth - (variance - noise)
    return math.ceil(noise / room) if room > 0 else None
