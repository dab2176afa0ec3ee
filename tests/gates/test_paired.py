"""The estimators and bounds of the gate: clustered moments, exact small cases, levels that hold."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dsa_verify.gates.statistics import bounds, truths
from dsa_verify.gates.statistics.paired import Moments, Paired, average, holm, mcnemar, paired, sign_flip

RNG_SEED = 7


def some(n=40, seed=RNG_SEED):
    return np.random.default_rng(seed).uniform(-1, 1, n)


def binary(better: int, worse: int, n: int):
    return paired(np.array([1.0] * better + [-1.0] * worse + [0.0] * (n - better - worse)), None, True)


def test_without_clusters_the_moments_are_the_unbiased_ones_of_a_mean():
    d = some()
    moments = paired(d).moments
    assert moments.mean == pytest.approx(d.mean())
    assert moments.variance == pytest.approx(d.var(ddof=1) / len(d))
    assert moments.third == pytest.approx(stats.kstat(d, 3) / len(d) ** 2)


def test_the_clustered_variance_is_the_formula_term_by_term():
    d, cluster = some(7), np.array([4, 4, 1, 9, 1, 1, 2])
    sums = [sum(d[i] - d.mean() for i in range(7) if cluster[i] == c) for c in (1, 2, 4, 9)]
    assert paired(d, cluster).moments.variance == pytest.approx(4 / 3 * sum(s**2 for s in sums) / 49)


def test_copies_of_a_document_add_no_certainty():
    d = some()
    once, copied = paired(d), paired(np.repeat(d, 5), np.repeat(np.arange(40), 5))
    for name in ("mean", "variance", "third", "degrees"):
        assert getattr(copied.moments, name) == pytest.approx(getattr(once.moments, name))
    assert copied.differing == once.differing and copied.clusters == 40


def test_the_order_of_documents_and_the_names_of_clusters_do_not_matter():
    d, cluster = some(30), np.repeat(np.arange(10), 3)
    shuffled = np.random.default_rng(1).permutation(30)
    again = paired(d[shuffled], 1000 - 7 * cluster[shuffled])
    assert again.moments.variance == pytest.approx(paired(d, cluster).moments.variance)


def test_leading_axes_are_independent_data_sets():
    d, cluster = np.stack([some(seed=1), some(seed=2)]), np.repeat(np.arange(20), 2)
    both = paired(d, cluster)
    for row in range(2):
        one = paired(d[row], cluster)
        assert both.moments.variance[row] == pytest.approx(one.moments.variance)
        assert both.moments.third[row] == pytest.approx(one.moments.third)


def test_the_macro_mean_weighs_tasks_equally_whatever_their_size():
    a, b = paired(some(30, 1)).moments, paired(some(300, 2)).moments
    both = average([a, b])
    assert both.mean == pytest.approx((a.mean + b.mean) / 2)
    assert both.variance == pytest.approx((a.variance + b.variance) / 4)
    assert both.third == pytest.approx((a.third + b.third) / 8)
    assert min(a.degrees, b.degrees) <= both.degrees <= a.degrees + b.degrees


def test_holm_steps_down_and_stays_monotone():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.4, np.nan])) == pytest.approx([0.8, 1.0])


def test_mcnemar_is_the_exact_binomial_of_the_discordant_pairs():
    d = np.array([-1.0] * 8 + [1.0] * 2 + [0.0] * 90)
    assert mcnemar(d) == pytest.approx(sum(stats.binom.pmf(k, 10, 0.5) for k in (8, 9, 10)))
    assert mcnemar(np.zeros(5)) == 1.0


def test_sign_flips_approach_the_enumeration_of_all_signs():
    d = np.array([-0.5, -0.4, -0.3, 0.2, -0.1, 0.05, 0.0])
    every = [np.dot(s, d[:6]) <= d.sum() + 1e-9 for s in itertools.product((-1, 1), repeat=6)]
    # 20,000 flips: five standard errors of a share are below 0.018.
    assert sign_flip(d, 3, 20_000) == pytest.approx(np.mean(every), abs=0.018)
    assert sign_flip(np.zeros(9), 3, 10) == 1.0


@pytest.mark.parametrize(("margin", "least"), [(0.05, 59), (0.03, 99), (0.02, 149), (0.01, 299)])
def test_zero_disagreements_show_a_margin_from_the_least_number_of_documents_on(margin, least):
    assert bounds.least_documents(margin, 0.05) == least
    for is_binary in (True, False):
        enough, short = (paired(np.zeros(n), None, is_binary) for n in (least, least - 1))
        assert bounds.p_above([enough], -margin) <= 0.05 < bounds.p_above([short], -margin)


def test_zero_disagreements_in_clusters_count_clusters():
    cluster = np.repeat(np.arange(58), 10)
    for is_binary in (True, False):
        assert bounds.p_above([paired(np.zeros(580), cluster, is_binary)], -0.05) > 0.05


def test_no_data_pass_and_too_few_clusters_show_nothing():
    for n in (1, 2, 6):
        for is_binary in (True, False):
            assert bounds.lower_bound([paired(np.zeros(n), None, is_binary)], 0.05) < -0.3


@pytest.mark.parametrize(
    ("tasks", "method"),
    [
        ([binary(3, 5, 200)], "score"),
        ([paired(some(200))], "skewed"),
        ([paired(some(60))], "betting"),
        ([paired(np.r_[some(9), np.zeros(300)])], "counting"),
        ([binary(20, 20, 80), binary(20, 20, 80)], "skewed"),
        ([paired(np.full(200, -0.04))], "betting"),
    ],
)
def test_every_method_gives_bounds_that_invert_its_p_value(tasks, method):
    assert bounds.method(tasks) == method
    mean = float(average([one.moments for one in tasks]).mean)
    low, high = bounds.lower_bound(tasks, 0.05), bounds.upper_bound(tasks, 0.05)
    assert low < mean < high
    # The bounds are placed to 1e-9; a millionth to either side is inside and outside.
    assert bounds.p_above(tasks, low - 1e-6) <= 0.05 <= bounds.p_above(tasks, low + 1e-6)
    assert bounds.p_below(tasks, high + 1e-6) <= 0.05 <= bounds.p_below(tasks, high - 1e-6)


@pytest.mark.parametrize("tasks", [[binary(4, 9, 80)], [paired(some(150))], [paired(some(40))], [binary(1, 2, 99)]])
def test_p_values_rise_with_the_value_that_is_to_be_exceeded(tasks):
    ps = [float(bounds.p_above(tasks, value)) for value in np.linspace(-0.95, 0.95, 39)]
    assert np.diff(ps).min() >= -1e-12


def test_the_score_test_is_the_exact_one_where_nothing_got_better():
    for n, worse, margin in itertools.product((30, 60, 200), range(12), (0.02, 0.05, 0.1)):
        assert bounds.p_above([binary(0, worse, n)], -margin) == pytest.approx(stats.binom.cdf(worse, n, margin))


@pytest.mark.parametrize("margin", [0.03, 0.05, 0.10, 0.15])
@pytest.mark.parametrize("n", [30, 60, 100, 200])
def test_the_score_test_holds_its_level_over_all_outcomes(n, margin):
    """Every outcome, weighed by its probability at the margin, for many rates of improvement; nothing is simulated."""
    cells = np.array([(b, w) for b in range(41) for w in range(81) if b + w <= n])
    better, worse = cells.T
    mean = (better - worse) / n
    variance = ((better + worse) / n - mean**2) / (n - 1)
    moments = Moments(mean, variance, np.zeros(len(mean)), np.full(len(mean), n - 1.0))
    every = Paired(True, n, n, moments, better, worse, better, worse, better + worse, variance, mean[:, None])
    passed, failed = bounds.score(every, -margin) <= 0.05, bounds.score(every.mirrored, margin) <= 0.05
    for up in (0.0, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05):
        share = np.column_stack([cells, n - better - worse])
        chance = stats.multinomial.pmf(share, n, [up, up + margin, 1 - margin - 2 * up])
        assert chance.sum() > 0.999
        # The target is 0.05; half a percent is what an approximate test may miss it by.
        assert (chance * passed).sum() <= 0.055 and (chance * failed).sum() <= 0.055


def test_clusters_widen_the_score_test():
    d = np.repeat([-1.0] * 4 + [0.0] * 56, 5)
    clustered = paired(d, np.repeat(np.arange(60), 5), True)
    assert bounds.p_above([clustered], -0.1) > 2 * bounds.p_above([paired(d, None, True)], -0.1)
    assert bounds.p_above([clustered], -0.1) == pytest.approx(bounds.p_above([binary(0, 4, 60)], -0.1), rel=0.05)


def test_counting_over_tasks_is_the_binomial_of_all_their_documents():
    tasks = [paired(np.r_[-0.2, np.zeros(199)]), paired(np.zeros(300))]
    assert bounds.p_above(tasks, -0.01) == pytest.approx(stats.binom.cdf(1, 400, 0.01))


def test_betting_over_unequal_tasks_keeps_its_level():
    """Two tasks whose losses differ, their mean at the margin, one with thrice the documents: at most 5% may pass."""
    rng = np.random.default_rng(11)
    a = truths.zero_or_one(rng, (2000, 20), 0.25)
    b = truths.zero_or_one(rng, (2000, 60), 0.05)
    assert (bounds.betting([paired(a), paired(b)], -0.15) <= 0.05).mean() <= 0.05


def test_clustering_holds_the_level_that_independence_breaks():
    """Five questions a document, correlation 0.5, truth at the margin (the note's simulation: 0.178 against 0.051)."""
    rng, shape = np.random.default_rng(5), (2000, 40, 5)
    d = np.clip(
        -0.05 + 0.25 * (np.sqrt(0.5) * rng.normal(size=(2000, 40, 1)) + np.sqrt(0.5) * rng.normal(size=shape)), -1, 1
    )
    d = d.reshape(2000, 200)
    clustered = bounds.skewed([paired(d, np.repeat(np.arange(40), 5))], -0.05) <= 0.05
    # 2,000 simulations: four standard errors of 0.05 are 0.02.
    assert clustered.mean() <= 0.07
    assert (bounds.skewed([paired(d)], -0.05) <= 0.05).mean() > 0.12


def test_the_skew_correction_holds_the_level_that_a_t_test_breaks():
    """150 documents of which a tenth are lost: nothing else moves."""
    rng = np.random.default_rng(6)
    scores = rng.uniform(0, 1, (4000, 150))
    tasks = [paired(np.where(rng.random((4000, 150)) < 0.1, -scores, 0.0))]
    moments = tasks[0].moments
    t = stats.t.sf((moments.mean + 0.05) / np.sqrt(moments.variance), 149)
    assert (t <= 0.05).mean() > 0.075
    # 4,000 simulations: three standard errors of 0.05 are 0.01.
    assert (bounds.p_above(tasks, -0.05) <= 0.05).mean() <= 0.06
