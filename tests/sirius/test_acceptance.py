from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.sirius.acceptance import (
    accepted_prefix,
    lossless_prefix,
    token_probabilities,
)


def _logits(*rows: list[float]) -> torch.Tensor:
    """One batch entry whose row i has the given probabilities."""
    return torch.tensor([[[math.log(p) for p in row] for row in rows]])


def _accepted(logits, tokens, threshold, temperature=0.6, lengths=None) -> list[int]:
    tokens = torch.tensor(tokens)
    lengths = torch.tensor(lengths or [tokens.shape[1]] * len(tokens))
    return accepted_prefix(
        logits, tokens, lengths, threshold=threshold, temperature=temperature
    ).tolist()


@pytest.mark.parametrize(("raw", "tempered"), [(0.2, 0.090), (0.8, 0.910), (0.25, 0.138)])
def test_the_papers_tempered_probabilities(raw, tempered):
    logits = _logits([raw, 1 - raw])
    assert float(token_probabilities(logits, torch.tensor([[0]]), 0.6)) == pytest.approx(
        tempered, abs=5e-4
    )


def test_the_papers_examples_of_the_threshold():
    assert _accepted(_logits([0.8, 0.2]), [[1]], 0.1) == [0]
    assert _accepted(_logits([0.75, 0.25]), [[1]], 0.1) == [1]


def test_probabilities_are_those_of_a_softmax():
    logits, tokens = 5 * torch.randn(2, 4, 9), torch.randint(9, (2, 4))
    expected = (logits.double() / 0.7).softmax(-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(token_probabilities(logits, tokens, 0.7), expected.float())
    reduced = token_probabilities(logits.bfloat16(), tokens, 0.7)
    assert reduced.dtype == torch.float32


def test_the_first_failure_ends_the_prefix():
    good, bad = [0.9, 0.1], [0.01, 0.99]
    assert _accepted(_logits(good, bad, good), [[0, 0, 0]], 0.5) == [1]
    assert _accepted(_logits(bad, good, good), [[0, 0, 0]], 0.5) == [0]
    assert _accepted(_logits(good, good, bad), [[0, 0, 0]], 0.5) == [2]
    assert _accepted(_logits(good, good, good), [[0, 0, 0]], 0.5) == [3]


def test_rows_are_judged_one_by_one():
    logits = torch.cat([_logits([0.9, 0.1], [0.9, 0.1]), _logits([0.1, 0.9], [0.9, 0.1])])
    assert _accepted(logits, [[0, 1], [1, 0]], 0.5) == [1, 2]


def test_padding_of_a_shorter_draft_is_never_accepted():
    logits = _logits([0.9, 0.1], [0.9, 0.1], [0.9, 0.1]).expand(4, -1, -1)
    tokens = [[0, 0, 0]] * 4
    assert _accepted(logits, tokens, 0.0, lengths=[0, 1, 2, 3]) == [0, 1, 2, 3]


def test_a_threshold_of_zero_accepts_even_the_impossible():
    logits = torch.tensor([[[0.0, -torch.inf], [0.0, -1e30]]])
    assert _accepted(logits, [[1, 1]], 0.0) == [2]


def test_a_threshold_above_one_rejects_even_the_certain():
    logits = torch.tensor([[[0.0, -torch.inf]]])
    assert _accepted(logits, [[0]], 1.0) == [1]
    assert _accepted(logits, [[0]], 1.0001) == [0]
    assert _accepted(logits, [[0]], math.inf) == [0]


def test_no_draft_at_all():
    assert _accepted(torch.empty(2, 0, 5), [[], []], 0.1, lengths=[0, 0]) == [0, 0]


@given(st.data())
def test_prefixes_are_those_of_a_plain_loop(data):
    batch, drafted = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    vocabulary = data.draw(st.integers(2, 8))
    threshold = data.draw(st.floats(0, 1.2))
    temperature = data.draw(st.sampled_from([0.2, 0.6, 1.0, 3.0]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    logits = 3 * torch.randn(batch, drafted, vocabulary, generator=generator)
    tokens = torch.randint(vocabulary, (batch, drafted), generator=generator)
    lengths = data.draw(st.lists(st.integers(0, drafted), min_size=batch, max_size=batch))
    probabilities = token_probabilities(logits, tokens, temperature).tolist()
    expected = []
    for row, length in zip(probabilities, lengths, strict=True):
        prefix = 0
        while prefix < length and row[prefix] >= torch.tensor(threshold):
            prefix += 1
        expected.append(prefix)
    assert _accepted(logits, tokens.tolist(), threshold, temperature, lengths) == expected


@given(st.integers(0, 999), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_threshold_never_accepts_more(seed, first, second):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(3, 5, 4, generator=generator)
    tokens = torch.randint(4, (3, 5), generator=generator).tolist()
    low, high = sorted((first, second))
    pairs = zip(_accepted(logits, tokens, low), _accepted(logits, tokens, high), strict=True)
    assert all(more >= less for more, less in pairs)


@pytest.mark.parametrize("seed", range(4))
def test_lossless_acceptance_draws_from_the_full_model(seed):
    """Whatever the draft is drawn from, the tokens are distributed as the full model's."""
    generator = torch.Generator().manual_seed(seed)
    n, vocabulary, width = 100_000, 5, 2
    p = torch.rand(width + 1, vocabulary, generator=generator).softmax(-1)
    q = (3 * torch.rand(width, vocabulary, generator=generator)).softmax(-1)
    tokens = torch.stack([torch.multinomial(row, n, True, generator=generator) for row in q], dim=1)
    accepted, following = lossless_prefix(
        p.expand(n, -1, -1),
        q.expand(n, -1, -1),
        tokens,
        torch.full((n,), width),
        torch.rand(n, width, generator=generator),
    )
    added = torch.multinomial(following, 1, generator=generator)[:, 0]
    for i in range(width):
        # Among texts that got as far as token i, it is drawn from p.
        reached = accepted >= i
        token = torch.where(accepted > i, tokens[:, i], added)[reached]
        shares = torch.bincount(token, minlength=vocabulary) / reached.sum()
        torch.testing.assert_close(shares, p[i], atol=0.01, rtol=0)
    rate = (accepted > 0).float().mean()
    torch.testing.assert_close(rate, torch.minimum(p[0], q[0]).sum(), atol=0.01, rtol=0)


def test_lossless_acceptance_of_greedy_drafts_is_equality():
    one_hot = torch.eye(4)
    p = one_hot[[2, 0, 1, 3]].expand(3, -1, -1)
    tokens = torch.tensor([[2, 0, 1], [2, 3, 1], [0, 0, 1]])
    accepted, following = lossless_prefix(
        p, one_hot[tokens], tokens, torch.tensor([3, 3, 2]), torch.zeros(3, 3)
    )
    assert accepted.tolist() == [3, 1, 0]
    assert following.argmax(-1).tolist() == [3, 0, 2]
    shorter = lossless_prefix(
        p, one_hot[tokens], tokens, torch.tensor([2, 1, 0]), torch.zeros(3, 3)
    )
    assert shorter[0].tolist() == [2, 1, 0]
    assert shorter[1].argmax(-1).tolist() == [1, 0, 2]
