"""From figures to statements: smoothing, times to a loss, tests over paired seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from scipy import stats


def first_at_most(times: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """The time of the first value of at most `target`, on straight lines between; None: never."""
    for i, value in enumerate(values):
        if value <= target:
            if i == 0:
                return times[0]
            share = (values[i - 1] - target) / (values[i - 1] - value)
            return times[i - 1] + share * (times[i] - times[i - 1])
    return None


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """The median and an interval for it, from order statistics: no distribution is assumed.

    With fewer values than the level needs (6 for 95 %) it is their whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    low = int(stats.binom.ppf((1 - level) / 2, count, 0.5))
    if low > 0 and stats.binom.cdf(low - 1, count, 0.5) > (1 - level) / 2:
        low -= 1
    low = max(low - 1, 0)
    return median(ordered), ordered[low], ordered[count - 1 - low]


# What compression may cost in final loss, in nats.
BAR = 0.005


@dataclass(frozen=True)
class Paired:
    """Differences of a method from another over the same seeds.

    Attributes:
        low, high: of the mean, with 95 % confidence.
        p_differs: of the paired t-test, two-sided, that the mean is not 0.
    """

    mean: float
    low: float
    high: float
    p_differs: float

    @property
    def meets_bar(self) -> bool:
        """It costs at most ``BAR``, or nothing that these seeds can show."""
        return self.mean <= BAR or self.low <= 0


def paired(differences: Sequence[float]) -> Paired:
    """At least two differences; positive ones are worse."""
    centre = mean(differences)
    if stdev(differences) == 0:
        return Paired(centre, centre, centre, float(centre == 0))
    test = stats.ttest_1samp(differences, 0)
    low, high = map(float, test.confidence_interval(0.95))
    return Paired(centre, low, high, float(test.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted, so that among all of them together an error is no likelier than for one."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def spread(values: Sequence[float]) -> float:
    """Standard deviation; 0 of a single value."""
    return stdev(values) if len(values) > 1 else 0.0
