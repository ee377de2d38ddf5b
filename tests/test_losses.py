"""Losses against formulas written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lit_kvpred.losses import (
    consistency,
    cross_entropy,
    hidden_distance,
    kl_divergence,
    masked_mean,
    next_token_labels,
    reduce_layers,
    z_loss,
)
from lit_kvpred.model.sequences import Sequences


def test_labels_stop_at_documents_padding_and_the_end():
    ids = torch.tensor([[5, 6, 7, 8, 9, 0]])
    documents = torch.tensor([[0, 0, 1, 1, 1, -1]])
    labels, mask = next_token_labels(ids, Sequences.packed(documents))
    assert labels[0, :4].tolist() == [6, 7, 8, 9]
    assert mask.tolist() == [[True, False, True, True, False, False]]


def test_labels_of_left_padded_rows_start_at_the_first_real_token():
    ids = torch.tensor([[0, 0, 5, 6, 7]])
    _, mask = next_token_labels(ids, Sequences.padded(torch.tensor([[0, 0, 1, 1, 1]])))
    assert mask.tolist() == [[False, False, True, True, False]]


def test_masked_mean_ignores_nan_and_survives_an_empty_mask():
    values = torch.tensor([[1.0, math.nan, 3.0]])
    assert masked_mean(values, torch.tensor([[True, False, True]])).item() == 2.0
    assert masked_mean(values, torch.zeros(1, 3, dtype=torch.bool)).item() == 0.0


def test_cross_entropy_and_z_loss():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    mask = torch.tensor([[True, True, False], [False, True, False]])
    picked = [(0, 0), (0, 1), (1, 1)]
    by_hand = [-math.log(float(logits[i].softmax(-1)[labels[i]])) for i in picked]
    assert cross_entropy(logits, labels, mask).item() == pytest.approx(sum(by_hand) / 3, abs=1e-5)
    squares = [float(logits[i].exp().sum().log()) ** 2 for i in picked]
    assert z_loss(logits, mask).item() == pytest.approx(sum(squares) / 3, abs=1e-5)


def test_kl_is_zero_for_equal_and_matches_the_definition():
    torch.manual_seed(0)
    exact, other = torch.randn(1, 2, 5), torch.randn(1, 2, 5)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert kl_divergence(exact, exact + 3.0, mask).item() == pytest.approx(0.0, abs=1e-6)
    p, q = exact.softmax(-1), other.softmax(-1)
    expected = (p * (p / q).log()).sum(-1).mean().item()
    assert kl_divergence(exact, other, mask).item() == pytest.approx(expected, abs=1e-5)


def test_hidden_distance_is_of_directions_and_ignores_masked_rows():
    exact = {3: torch.randn(2, 4, 8), 4: torch.randn(2, 4, 8)}
    mask = torch.ones(2, 4, dtype=torch.bool)
    longer = {layer: 5 * state for layer, state in exact.items()}
    assert float(hidden_distance(longer, exact, mask)) == pytest.approx(0.0, abs=1e-5)
    opposite = {3: exact[3], 4: -exact[4]}
    assert float(hidden_distance(opposite, exact, mask)) == pytest.approx(2.0, abs=1e-4)
    mask[0, 0] = False
    broken = {layer: state.clone() for layer, state in exact.items()}
    broken[3][0, 0] = torch.nan
    assert float(hidden_distance(broken, exact, mask)) == pytest.approx(0.0, abs=1e-5)


def test_consistency_is_a_mean_per_layer_whatever_its_width():
    real = torch.tensor([[True, True, False]])
    predicted = [torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 16)]
    exact = [torch.full((1, 2, 3, 4), 2.0), torch.full((1, 1, 3, 16), -3.0)]
    for layer in exact:
        layer[:, :, 2] = math.nan  # padding may hold anything
    keys, values = consistency(predicted, predicted, exact, exact, real)
    assert keys.tolist() == [2.0, 3.0]
    assert values.tolist() == [2.0, 3.0]
    errors = torch.tensor([2.0, 3.0])
    assert reduce_layers(errors, errors, "sum").item() == 10.0
    assert reduce_layers(errors, errors, "mean").item() == 5.0
