"""Closed forms of the Sirius metrics against the published tables."""

import doctest

import pytest

from lit_kvpred.sirius import metrics

# Method density, average advance length at period 16, published effective density.
PUBLISHED_EFFECTIVE_DENSITIES = [
    (0.65, 15.22, 0.706),
    (0.65, 15.29, 0.703),
    (0.76, 15.37, 0.807),
    (0.76, 15.03, 0.825),
    (0.58, 14.76, 0.657),
    (0.58, 15.43, 0.628),
    (0.72, 15.66, 0.753),
    (0.72, 15.00, 0.786),
    (0.65, 14.67, 0.733),
    (0.76, 15.42, 0.804),
    (0.76, 15.5446, 0.797),
]

# hidden, MLP width, layers, K or V width, vocabulary of the public configurations, and the
# published densities: CSparse and FSparse at keep 0.5, then at keep 0.4.
PUBLISHED_DENSITIES = {
    "Llama-3-8B": ((4096, 14336, 32, 1024, 128256), (0.649, 0.766, 0.579, 0.719)),
    "Llama-2-7B": ((4096, 11008, 32, 4096, 32000), (0.679, 0.786, 0.615, 0.743)),
    "Llama-2-13B": ((5120, 13824, 40, 5120, 32000), (0.674, 0.782, 0.608, 0.739)),
    "Llama-3-70B": ((8192, 28672, 80, 1024, 128256), (0.600, 0.734, 0.521, 0.680)),
}


def mlp_share(hidden: int, width: int, layers: int, kv_width: int, vocabulary: int) -> float:
    """Share of the parameters in gated MLPs, counted from the shapes of an untied Llama."""
    mlp = layers * 3 * hidden * width
    attention = layers * (2 * hidden * hidden + 2 * hidden * kv_width)
    norms = (2 * layers + 1) * hidden
    return mlp / (mlp + attention + norms + 2 * vocabulary * hidden)


@pytest.mark.parametrize(("density", "aal", "published"), PUBLISHED_EFFECTIVE_DENSITIES)
def test_effective_density_reproduces_the_published_table(density, aal, published):
    value = metrics.effective_density(period=16, density=density, aal=aal)
    # Some cells were cut to three decimals, others rounded.
    assert published - 5e-4 <= value < published + 1e-3


def test_effective_density_of_the_published_misprint():
    # HumanEval, Llama-3-8B, CSparse: the table prints .691 beside an advance of 15.1074.
    assert metrics.effective_density(16, 0.65, 15.1074) == pytest.approx(0.712, abs=5e-4)


def test_effective_density_of_the_claims_on_gsm8k():
    assert metrics.effective_density(16, 0.65, 13.4) == pytest.approx(0.802, abs=5e-4)
    assert metrics.effective_density(10, 0.65, 9.0) == pytest.approx(0.761, abs=5e-4)


def test_effective_density_at_the_ends():
    assert metrics.effective_density(period=1, density=0.3, aal=1) == 1.0
    assert metrics.effective_density(period=8, density=1.0, aal=8) == 1.0
    assert metrics.effective_density(period=8, density=1.0, aal=1) == 8.0


def test_average_parameters_used_is_the_effective_density_in_parameters():
    used = metrics.average_parameters_used(
        period=16, parameters=70.6, sparse_parameters=0.6 * 70.6, aal=15.4
    )
    # Offloaded decoding of a 70B model: (15 * .6 + 1) / 15.4 = .649.
    assert used / 70.6 == pytest.approx(10 / 15.4)


def test_average_advance_length_is_advances_over_checks():
    assert metrics.average_advance_length([16, 1, 16, 15]) == 12.0


@pytest.mark.parametrize(
    ("gamma", "tokens", "cost"),
    [
        (1, 1.890, 0.873),
        (2, 2.682, 0.858),
        (3, 3.387, 0.871),
        (4, 4.014, 0.897),
        (7, 5.512, 1.007),
        (16, 7.837, 1.455),
    ],
)
def test_speculative_decoding_reproduces_the_published_points(gamma, tokens, cost):
    assert metrics.speculative_expected_tokens(0.89, gamma) == pytest.approx(tokens, abs=5e-4)
    assert metrics.speculative_relative_cost(0.89, gamma, 0.65) == pytest.approx(cost, abs=5e-4)


@pytest.mark.parametrize(("alpha", "best", "cost"), [(0.89, 2, 0.858), (0.71, 1, 0.965)])
def test_best_draft_length_of_speculative_decoding(alpha, best, cost):
    costs = {gamma: metrics.speculative_relative_cost(alpha, gamma, 0.65) for gamma in range(1, 17)}
    assert min(costs, key=costs.__getitem__) == best
    assert costs[best] == pytest.approx(cost, abs=5e-4)


def test_speculative_expected_tokens_at_the_ends():
    assert metrics.speculative_expected_tokens(1.0, 7) == 8.0
    assert metrics.speculative_expected_tokens(0.0, 7) == 1.0
    assert metrics.speculative_expected_tokens(0.5, 0) == 1.0


@pytest.mark.parametrize("model", PUBLISHED_DENSITIES)
def test_densities_reproduce_the_published_table(model):
    shape, published = PUBLISHED_DENSITIES[model]
    share = mlp_share(*shape)
    computed = (
        metrics.csparse_density(0.5, share),
        metrics.fsparse_density(0.5, share),
        metrics.csparse_density(0.4, share),
        metrics.fsparse_density(0.4, share),
    )
    assert computed == pytest.approx(published, abs=6e-4)


def test_densities_at_the_ends():
    assert metrics.csparse_density(1.0, 0.7) == metrics.fsparse_density(1.0, 0.7) == 1.0
    assert metrics.csparse_density(0.0, 0.7) == pytest.approx(0.3)
    assert metrics.fsparse_density(0.0, 0.75) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.effective_density(0, 0.5, 1), r"`period`.* at least 1, but got 0"),
        (lambda: metrics.effective_density(2.5, 0.5, 1), r"`period`.* but got 2\.5"),
        (lambda: metrics.effective_density(True, 0.5, 1), r"`period`.* but got True"),
        (lambda: metrics.effective_density(16, 0, 1), r"`density`.* \(0, 1\], but got 0"),
        (lambda: metrics.effective_density(16, 1.1, 1), r"`density`.* but got 1\.1"),
        (lambda: metrics.effective_density(16, 0.5, 0), r"`aal`.* greater than 0, but got 0"),
        (lambda: metrics.effective_density(16, 0.5, float("nan")), r"`aal`.* but got nan"),
        (lambda: metrics.average_parameters_used(4, 1.0, 2.0, 3), r"1\.0, but got 2\.0"),
        (lambda: metrics.average_parameters_used(4, -1.0, 0.5, 3), r"`parameters`.* got -1\.0"),
        (lambda: metrics.average_advance_length([]), r"`advances`.* got none"),
        (lambda: metrics.average_advance_length([3, 0]), r"`advances`.* but got 0"),
        (lambda: metrics.speculative_expected_tokens(1.2, 2), r"`alpha`.* but got 1\.2"),
        (lambda: metrics.speculative_expected_tokens(0.5, -1), r"`gamma`.* but got -1"),
        (lambda: metrics.speculative_relative_cost(0.5, 2, 2.0), r"`density`.* but got 2\.0"),
        (lambda: metrics.csparse_density(1.5, 0.7), r"`keep`.* but got 1\.5"),
        (lambda: metrics.fsparse_density(0.5, float("nan")), r"`mlp_share`.* but got nan"),
    ],
)
def test_arguments_are_checked_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_examples_in_the_docstrings():
    outcome = doctest.testmod(metrics)
    assert outcome.attempted > 0
    assert outcome.failed == 0
