"""The next token depends on logits, sampling and position, on nothing else; and its distribution is the asked one."""

import numpy as np
import pytest

from dsa_verify.engine.sampling import Sampling, pick
from dsa_verify.errors import RequestError

LOGITS = np.log(np.array([0.1, 0.5, 0.15, 0.25], np.float32))


def frequencies(sampling_of, draws=4000):
    tokens = [pick(LOGITS, sampling_of(n), n % 7).token for n in range(draws)]
    return np.bincount(tokens, minlength=4) / draws


def test_greedy_takes_the_best_and_says_how_clear_it_was():
    chosen = pick(np.array([1.0, 3.0, 2.5], np.float32), Sampling(), 0)
    assert (chosen.token, chosen.gap) == (1, 0.5)


def test_greedy_takes_the_lowest_among_equals():
    chosen = pick(np.array([1.0, 3.0, 3.0], np.float32), Sampling(), 0)
    assert (chosen.token, chosen.gap) == (1, 0.0)


def test_only_token_of_a_vocabulary_is_clear():
    assert pick(np.zeros(1, np.float32), Sampling(), 0).gap == np.inf


# Four standard deviations of a frequency of 4,000 draws are at most 4 * sqrt(0.25 / 4000) = 0.032.
@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.1, 0.5, 0.15, 0.25]),
        (0.5, 1.0, np.array([0.01, 0.25, 0.0225, 0.0625]) / 0.345),
        (1.0, 0.74, [0, 2 / 3, 0, 1 / 3]),
        (1.0, 0.76, np.array([0, 0.5, 0.15, 0.25]) / 0.9),
        (1.0, 0.01, [0, 1, 0, 0]),
    ],
)
def test_drawn_tokens_have_the_asked_distribution(temperature, top_p, expected):
    found = frequencies(lambda n: Sampling(temperature, top_p, n))
    assert np.abs(found - expected).max() < 0.032
    assert (found[np.array(expected) == 0] == 0).all()


def test_draw_is_repeatable_and_depends_on_seed_and_position():
    def draws(seed, first):
        return [pick(np.zeros(1000), Sampling(1.0, seed=seed), first + n).token for n in range(8)]

    assert draws(1, 0) == draws(1, 0)
    assert draws(1, 0) != draws(2, 0)
    assert draws(1, 0)[1:] == draws(1, 1)[:-1]


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"temperature": np.nan}, {"top_p": 0.0}, {"top_p": 1.5}, {"seed": -1}]
)
def test_strange_setting_is_refused(wrong):
    with pytest.raises(RequestError):
        Sampling(**wrong)
