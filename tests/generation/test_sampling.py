from __future__ import annotations

import math

import pytest
import torch

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation.sampling import Sampling, TokenChooser

_CPU = torch.device("cpu")
_PROBABILITIES = torch.tensor([0.5, 0.25, 0.15, 0.1])
_DRAWS = 20_000


def _frequencies(sampling: Sampling) -> torch.Tensor:
    """How often each token is drawn from `_PROBABILITIES`."""
    logits = _PROBABILITIES.log().expand(_DRAWS, -1)
    drawn = TokenChooser(sampling, _CPU)(logits)
    return drawn.bincount(minlength=4) / _DRAWS


def _assert_like(frequencies: torch.Tensor, expected: list[float]) -> None:
    # Five standard deviations of a binomial share.
    tolerance = 5 * math.sqrt(0.25 / _DRAWS)
    torch.testing.assert_close(
        frequencies, torch.tensor(expected, dtype=torch.float32), atol=tolerance, rtol=0
    )


def test_greedy_is_the_default_and_takes_the_largest():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 1.0]])
    assert TokenChooser(Sampling(), _CPU)(logits).tolist() == [1, 0]
    assert TokenChooser(Sampling(top_k=2, top_p=0.5, seed=3), _CPU)(logits).tolist() == [1, 0]


def test_temperature_one_draws_the_models_own_probabilities():
    _assert_like(_frequencies(Sampling(temperature=1.0, seed=0)), _PROBABILITIES.tolist())


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature):
    powered = _PROBABILITIES ** (1 / temperature)
    expected = (powered / powered.sum()).tolist()
    _assert_like(_frequencies(Sampling(temperature=temperature, seed=0)), expected)


def test_a_tiny_temperature_is_greedy():
    assert _frequencies(Sampling(temperature=1e-3, seed=0)).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("top_k", "expected"), [(1, [1, 0, 0, 0]), (2, [2 / 3, 1 / 3, 0, 0]), (0, None), (9, None)]
)
def test_top_k_draws_among_the_most_likely(top_k, expected):
    frequencies = _frequencies(Sampling(temperature=1.0, top_k=top_k, seed=0))
    _assert_like(frequencies, expected or _PROBABILITIES.tolist())
    if expected:
        assert not frequencies[top_k:].any()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.4, [1, 0, 0, 0]),
        (0.7, [2 / 3, 1 / 3, 0, 0]),
        (0.85, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
        (1.0, None),
    ],
)
def test_top_p_draws_among_the_smallest_set_of_that_probability(top_p, expected):
    frequencies = _frequencies(Sampling(temperature=1.0, top_p=top_p, seed=0))
    _assert_like(frequencies, expected or _PROBABILITIES.tolist())
    if expected:
        assert bool(((frequencies > 0) == (torch.tensor(expected) > 0)).all())


def test_temperature_acts_before_top_p():
    # At temperature 4 the probabilities are .32, .27, .23, .21 and three make up .8.
    frequencies = _frequencies(Sampling(temperature=4.0, top_p=0.75, seed=0))
    assert (frequencies > 0).tolist() == [True, True, True, False]


def _drawn(seed: int | None) -> list[int]:
    choose = TokenChooser(Sampling(temperature=1.0, seed=seed), _CPU)
    return [int(choose(torch.zeros(1, 50))) for _ in range(12)]


def test_a_seed_fixes_what_is_drawn():
    torch.manual_seed(1)
    first = _drawn(7)
    torch.manual_seed(2)
    assert _drawn(7) == first
    assert _drawn(8) != first
    assert len(set(first)) > 1


def test_a_seed_leaves_torchs_own_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    _drawn(7)
    assert torch.equal(torch.rand(3), expected)


def test_without_a_seed_torchs_own_generator_draws():
    torch.manual_seed(1)
    first = _drawn(None)
    torch.manual_seed(1)
    assert _drawn(None) == first
    assert _drawn(None) != first


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -0.1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": -1.0}]
    + [{"temperature": float("nan")}, {"top_p": float("nan")}, {"temperature": "1"}]
    + [{"top_k": 1.5}, {"top_p": None}, {"seed": 2**64}, {"seed": "0"}, {"seed": 1.0}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=f"^sampling {next(iter(wrong))} must be") as error:
        Sampling(**wrong)
    assert "\n" not in str(error.value)
