"""The scaling law: hand-worked values, recovery of known constants, and intervals that contain what they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertwright.planning.scaling_law import (
    NOISE,
    PRIOR,
    UNIT_PARAMETERS,
    UNIT_TOKENS,
    ScalingLaw,
    ShortRun,
    count_effective_tokens,
    has_left_plateau,
)

TINY = int(UNIT_PARAMETERS)
MEANS = np.array([constant.mean for constant in PRIOR.values()])


def exact_law(**changes: float) -> ScalingLaw:
    """Return a law with the means of the prior, but for some constants, and no uncertainty."""
    constants = [changes.get(name, constant.mean) for name, constant in PRIOR.items()]
    return ScalingLaw(np.array(constants), np.zeros((len(PRIOR), len(PRIOR))))


def run_by(law: ScalingLaw, parameters: int, tokens: float) -> ShortRun:
    return ShortRun(parameters, tokens, law.predict(parameters, tokens).mean)


def test_loss_at_the_units_is_the_sum_of_the_three_terms() -> None:
    law = exact_law(E=0.5, A=1.5, B=3.0)
    assert law.predict(TINY, UNIT_TOKENS).mean == pytest.approx(5.0)


def test_each_term_follows_its_exponent() -> None:
    # 16 times the parameters: 1.5 / 16^0.25 = 0.75, and 3 · 16^0.5 = 12; 32 times the tokens: 12 / 32^0.2 = 6.
    law = exact_law(E=0.5, A=1.5, alpha=0.25, B=3.0, beta=0.2, gamma=0.5)
    assert law.predict(16 * TINY, 32 * UNIT_TOKENS).mean == pytest.approx(0.5 + 0.75 + 6.0)


def test_interval_of_known_constants_is_that_of_the_noise() -> None:
    found = exact_law().predict(TINY, UNIT_TOKENS)
    assert found.high - found.mean == pytest.approx(1.645 * NOISE) == pytest.approx(found.mean - found.low)


def test_fit_without_runs_returns_the_prior() -> None:
    law = ScalingLaw.fit([])
    deviations = [constant.deviation for constant in PRIOR.values()]
    assert law.constants == pytest.approx(MEANS)
    assert np.sqrt(np.diag(law.covariance)) == pytest.approx(deviations)


def test_fit_predicts_a_text_whose_level_and_slope_differ_from_the_prior() -> None:
    truth = exact_law(E=0.0, B=3.6)
    law = ScalingLaw.fit([run_by(truth, TINY, tokens * 1e6) for tokens in (2, 4, 8)])
    for tokens in (16e6, 64e6):
        expected, found = truth.predict(TINY, tokens).mean, law.predict(TINY, tokens)
        assert found.mean == pytest.approx(expected, abs=0.15)
        assert found.low < expected < found.high


def test_interval_narrows_with_runs_and_widens_with_distance() -> None:
    truth = exact_law()
    none, two = ScalingLaw.fit([]), ScalingLaw.fit([run_by(truth, TINY, tokens) for tokens in (2e6, 4e6)])

    def spread(law: ScalingLaw, parameters: int, tokens: float) -> float:
        found = law.predict(parameters, tokens)
        return found.high - found.low

    assert spread(two, TINY, 8e6) < spread(none, TINY, 8e6) / 4
    assert spread(two, TINY, 8e6) < spread(two, TINY, 80e6) < spread(two, 8 * TINY, 80e6)


def test_larger_models_are_better_only_after_enough_tokens() -> None:
    law = ScalingLaw.fit([])
    base = 85_054_464
    assert law.predict(base, 1e6).mean > law.predict(TINY, 1e6).mean
    assert law.predict(base, 1e10).mean < law.predict(TINY, 1e10).mean


@pytest.mark.parametrize(("perplexity", "layers", "hidden"), [(5.84, 3, 768), (3.99, 12, 768), (3.23, 24, 1024)])
def test_prior_includes_the_perplexities_of_the_papers_table_6(perplexity: float, layers: int, hidden: int) -> None:
    # A million steps of 256 sequences, 128 tokens in 90 % of them and 512 in the others; about 10 epochs.
    tokens = count_effective_tokens(42.6e9, epochs=10)
    found = ScalingLaw.fit([]).predict(12 * layers * hidden**2, tokens)
    assert found.low < math.log(perplexity) < found.high


def test_effective_tokens_of_new_text_are_its_tokens() -> None:
    assert count_effective_tokens(3e6, epochs=0.3) == 3e6
    assert count_effective_tokens(3e6, epochs=1.0) == 3e6


def test_effective_tokens_of_repeated_text_approach_sixteen_epochs() -> None:
    # One epoch of a million tokens, and one repetition: 15.4 (1 - exp(-1 / 15.4)) = 0.968 of its value.
    assert count_effective_tokens(2e6, epochs=2) == pytest.approx(1.968e6, rel=1e-3)
    assert count_effective_tokens(1000e6, epochs=1000) == pytest.approx(16.4e6)


def test_plateau_is_near_the_unigram_entropy() -> None:
    assert not has_left_plateau(6.5, entropy=6.65)
    assert has_left_plateau(5.1, entropy=6.65)
