"""Trees of drafts: an ordinary draft at width 1, and the paper's search at any other."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import settings as property_settings
from hypothesis import strategies as st

from lit_kvpred.errors import ConfigurationError, UnsupportedFamilyError
from lit_kvpred.generation.events import RetractionEvent
from lit_kvpred.generation.generate import generate_exact, stream_exact
from lit_kvpred.generation.periods import Periods
from lit_kvpred.generation.sampling import Sampling
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse, FSparse, NeuronStatistics, SparseBase
from tests.generation.reference import assert_teacher_forced
from tests.tiny_models import left_padded, predicting_model, random_ids, tiny_model

# gemma2 and phi3 have sliding windows of 8, shorter than the trees here are deep.
_FAMILIES = ("llama", "qwen3", "gpt2", "gpt_neox", "gemma2", "phi3")
_PROMPTS = [random_ids(n, seed=n) for n in (9, 3, 14)]


@cache
def _adapter(family: str = "llama") -> FamilyAdapter:
    return FamilyAdapter(tiny_model(family, weight_scale=8.0))


def _settings(**chosen) -> GenerationSettings:
    return GenerationSettings(**{"max_new_tokens": 17, "eos_ids": ()} | chosen)


def _written(adapter, ids, correction, mask=None, **chosen):
    return generate_exact(adapter, ids, mask, settings=_settings(**chosen), correction=correction)


def _always_a_tree(self):
    yield from ()
    return self._tree()


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
def test_one_branch_is_an_ordinary_draft(family, static, threshold, monkeypatch):
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(period=10, threshold=threshold, draft=CSparse(0.3))
    plain = _written(_adapter(family), ids, correction, mask, static_cache=static)
    monkeypatch.setattr(Periods, "_sequence", _always_a_tree)
    tree = _written(_adapter(family), ids, correction, mask, static_cache=static)
    assert tree.answers == plain.answers
    assert tree.stats.advances == plain.stats.advances
    assert tree.stats.rejected_at == plain.stats.rejected_at
    assert len(tree.stats.sparse_step_s) == len(plain.stats.sparse_step_s)


def _beams(sparse, exact, pending, width, depth, temperature, complete):
    """The search of Sirius 4 by its own words, each branch a forward over its whole text."""
    beams = [((), 0.0)]
    nodes = []
    for _ in range(depth):
        grown = []
        for path, score in beams:
            if complete(path):
                grown.append((path, score))
                continue
            cache = RecordingCache()
            for layer, (keys, values) in enumerate(exact):
                cache.update(keys, values, layer)
            with torch.no_grad():
                logits = sparse(torch.tensor([[pending, *path]]), cache=cache, use_cache=True)
            logs = (logits.logits[0, -1].double() / temperature).log_softmax(-1)
            best = logs.topk(width)
            grown += [
                ((*path, int(t)), score + float(s))
                for s, t in zip(best.values, best.indices, strict=True)
            ]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
        nodes += [path for path, _ in beams]
        if all(complete(path) for path, _ in beams):
            break
    return nodes


def _reference(adapter, ids, correction, new: int) -> tuple[list[int], list[int]]:
    base, sparse = adapter.model, SparseBase(adapter)
    statistics = NeuronStatistics(sparse.parts)
    with torch.no_grad(), statistics.recording(torch.ones_like(ids, dtype=torch.bool)):
        answer = [int(base(ids).logits[0, -1].argmax())]
    model = sparse.by_prompt(statistics, correction.draft)
    advances = []
    while len(answer) < new:
        cache = RecordingCache()
        with torch.no_grad():
            text = torch.cat([ids, torch.tensor([answer[:-1]], dtype=torch.long)], dim=1)
            base(text, cache=cache, use_cache=True)
        exact = [(layer.keys, layer.values) for layer in cache.layers]
        nodes = _beams(
            model, exact, answer[-1], correction.tree_width, correction.period - 1,
            correction.temperature, lambda path, held=len(answer): held + len(path) >= new,
        )  # fmt: skip
        best, following = (), None
        for path in [(), *nodes]:
            with torch.no_grad():
                text = torch.cat([ids, torch.tensor([[*answer, *path]])], dim=1)
                logits = base(text).logits[0, ids.shape[1] + len(answer) - 1 :]
            q = (logits[:-1] / correction.temperature).softmax(-1)
            passed = all(q[i, t] >= correction.threshold for i, t in enumerate(path))
            if passed and (len(path) > len(best) or following is None):
                best, following = path, int(logits[-1].argmax())
        answer += best
        if len(answer) < new:
            answer.append(following)
            advances.append(len(best) + 1)
    return answer, advances


@property_settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 5),
    st.integers(2, 4),
    st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    st.sampled_from([0.1, 0.5]),
    st.integers(1, 14),
    st.integers(0, 99),
)
def test_the_search_is_that_of_the_paper(period, width, threshold, keep, new, seed):
    correction = Correction(
        period=period, threshold=threshold, draft=CSparse(keep), tree_width=width
    )
    ids = random_ids(1, 4 + seed % 9, seed=seed)
    output = _written(_adapter(), ids, correction, max_new_tokens=new)
    answer, advances = _reference(_adapter(), ids, correction, new)
    assert output.answers[0] == answer
    # The last period's advance counts only where the base's own token was still wanted.
    assert output.stats.advances[: len(advances)] == advances[: len(output.stats.advances)]


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("draft", [CSparse(0.25), FSparse(0.25)])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("rule", [{"threshold": 1.1}, {"threshold": 0.0, "acceptance": "lossless"}])
def test_strict_rules_give_the_bases_text(family, draft, static, rule):
    adapter = _adapter(family)
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(period=6, draft=draft, tree_width=3, **rule)
    output = _written(adapter, ids, correction, mask, static_cache=static)
    assert output.answers == _written(adapter, ids, None, mask).answers
    if "acceptance" not in rule:
        assert set(output.stats.advances) == {1}


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_batch_is_its_prompts_alone(width, static, family):
    correction = Correction(period=5, threshold=0.02, draft=FSparse(0.3), tree_width=width)
    ids, mask = left_padded(_PROMPTS)
    together = _written(_adapter(family), ids, correction, mask, static_cache=static)
    for row, prompt in enumerate(_PROMPTS):
        alone = _written(_adapter(family), prompt[None], correction, static_cache=static)
        assert together.answers[row] == alone.answers[0]


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.3])
def test_after_it_all_the_cache_is_a_teacher_forced_one(family, threshold):
    adapter = _adapter(family)
    correction = Correction(period=5, threshold=threshold, draft=CSparse(0.3), tree_width=3)
    output = _written(adapter, random_ids(1, 9), correction, keep_context=True)
    assert_teacher_forced(adapter.model, output.context)


def test_nothing_is_rejected_at_threshold_zero():
    correction = Correction(period=5, threshold=0.0, draft=CSparse(0.3), tree_width=3)
    output = _written(_adapter(), random_ids(1, 9), correction, max_new_tokens=21)
    # The period in which the answer ends doesn't count.
    assert output.stats.advances == [5, 5, 5]


def test_a_branch_that_ends_is_kept_only_if_it_is_accepted():
    """Every token of the free text as end of sequence: it ends there, drafted or not."""
    ids = _PROMPTS[0][None]
    correction = Correction(period=5, threshold=0.0, draft=CSparse(0.3), tree_width=3)
    free = _written(_adapter(), ids, correction).answers[0]
    plain = _written(_adapter(), ids, None).answers[0]
    strict = Correction(period=5, threshold=1.1, draft=CSparse(0.3), tree_width=3)
    for token in set(free):
        ended = _written(_adapter(), ids, correction, eos_ids=(token,)).answers[0]
        assert token not in ended[:-1]
        assert len(ended) == 17 or ended[-1] == token
        greedy = _written(_adapter(), ids, strict, eos_ids=(token,)).answers[0]
        cut = plain.index(token) + 1 if token in plain else len(plain)
        assert greedy == plain[:cut]


@pytest.mark.parametrize("policy", ["hold", "retract", "commit"])
def test_what_is_shown_stays(policy):
    correction = Correction(
        period=5, threshold=0.05, policy=policy, draft=CSparse(0.2), tree_width=3
    )
    ids, mask = left_padded(_PROMPTS)
    events = list(stream_exact(_adapter(), ids, mask, settings=_settings(), correction=correction))
    assert not any(isinstance(event, RetractionEvent) for event in events)


def test_wider_than_the_vocabulary():
    base = tiny_model("llama", weight_scale=8.0, vocab_size=5)
    correction = Correction(period=4, threshold=1.1, draft=CSparse(0.3), tree_width=9)
    adapter, ids = FamilyAdapter(base), torch.tensor([[1, 3, 4, 2]])
    output = _written(adapter, ids, correction)
    assert output.answers == _written(adapter, ids, None).answers


@pytest.mark.parametrize("slice_rows", [None, 4])
@pytest.mark.parametrize("static", [False, True])
def test_a_tree_after_a_predicted_prompt(slice_rows, static):
    model = predicting_model(tiny_model("llama", weight_scale=8.0))
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(
        period=9, threshold=1.1, draft=CSparse(0.3), tree_width=4, slice_rows=slice_rows
    )
    output = model.generate(
        ids, mask, correction=correction, max_new_tokens=17, eos_ids=(), static_cache=static
    )
    assert output.answers == _written(model.adapter, ids, None, mask).answers
    assert output.stats.sparse_step_s


def test_what_no_tree_can_do_is_refused():
    correction = Correction(draft=CSparse(), tree_width=2)
    with pytest.raises(UnsupportedFamilyError, match="family 'bloom'"):
        _written(FamilyAdapter(tiny_model("bloom")), random_ids(1, 4), correction)
    lossless = Correction(draft=CSparse(), tree_width=2, acceptance="lossless")
    with pytest.raises(ConfigurationError, match="a tree of drafts is not drawn"):
        _written(_adapter(), random_ids(1, 4), lossless, sampling=Sampling(0.7))
