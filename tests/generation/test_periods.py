"""Sirius periods: sparse drafts, one verify pass each, and an exact cache after every one."""

from __future__ import annotations

import copy
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.generation import reconciliation, sparse_draft
from lit_kvpred.generation.events import RetractionEvent, TokenEvent
from lit_kvpred.generation.generate import generate_exact, stream_exact
from lit_kvpred.generation.sampling import Sampling
from lit_kvpred.generation.settings import GenerationSettings
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.caches import RecordingCache
from lit_kvpred.model.family import FamilyAdapter
from lit_kvpred.model.kv_prediction import KVPredictionModel
from lit_kvpred.sirius.correction import Correction
from lit_kvpred.sirius.sparsity import CSparse, FSparse, NeuronStatistics, SparseBase
from tests.generation.reference import assert_teacher_forced
from tests.tiny_models import left_padded, random_ids, tiny_model

_FAMILIES = ("llama", "qwen3", "gpt2", "gpt_neox", "gemma2", "phi3")
_PROMPTS = [random_ids(n, seed=n) for n in (9, 3, 14)]
_HALF = CSparse(0.5)


@cache
def _adapter(family: str = "llama") -> FamilyAdapter:
    return FamilyAdapter(tiny_model(family, weight_scale=8.0))


@cache
def _joined(kind: str, family: str = "llama") -> KVPredictionModel:
    base = _adapter(family).model
    torch.manual_seed(3)
    auxiliary = build_auxiliary(base, kind, keep=2 if kind == "prefix" else 0.5)
    return KVPredictionModel(base, auxiliary).eval()


def _settings(**chosen) -> GenerationSettings:
    return GenerationSettings(**{"max_new_tokens": 17, "eos_ids": ()} | chosen)


def _plain(adapter, ids, mask=None, **chosen) -> list[list[int]]:
    return generate_exact(adapter, ids, mask, settings=_settings(**chosen)).answers


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("draft", [CSparse(0.25), FSparse(0.25)])
@pytest.mark.parametrize("static", [False, True])
def test_rejecting_everything_is_plain_greedy_with_aal_one(family, draft, static):
    adapter = _adapter(family)
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(period=4, threshold=1.1, draft=draft)
    output = generate_exact(
        adapter, ids, mask, settings=_settings(static_cache=static), correction=correction
    )
    assert output.answers == _plain(adapter, ids, mask)
    assert output.stats.aal == 1
    assert output.stats.accepted == 0


@pytest.mark.parametrize("period", [2, 4, 16])
def test_rejecting_nothing_advances_by_whole_periods(period):
    correction = Correction(period=period, threshold=0.0, draft=_HALF)
    output = generate_exact(
        _adapter(), _PROMPTS[0][None], settings=_settings(max_new_tokens=3 * period + 2),
        correction=correction,
    )  # fmt: skip
    stats = output.stats
    assert stats.aal == period
    assert stats.accepted == stats.drafted
    assert stats.effective_density == pytest.approx(((period - 1) * _density(_HALF) + 1) / period)
    assert stats.rejected_at == [0] * (period - 1)


def _density(sparsity) -> float:
    return SparseBase(_adapter()).density(sparsity)


@pytest.mark.parametrize("draft", [CSparse(1.0), FSparse(1.0)])
def test_a_draft_with_all_neurons_writes_the_bases_text(draft):
    adapter, ids = _adapter(), _PROMPTS[0][None]
    correction = Correction(period=4, threshold=1e-9, draft=draft)
    output = generate_exact(adapter, ids, settings=_settings(), correction=correction)
    assert output.answers == _plain(adapter, ids)
    assert output.stats.aal == 4


def test_a_period_of_one_is_plain():
    adapter, ids = _adapter(), _PROMPTS[0][None]
    correction = Correction(period=1, threshold=0.5, draft=_HALF)
    output = generate_exact(adapter, ids, settings=_settings(), correction=correction)
    assert output.answers == _plain(adapter, ids)
    assert output.stats.sparse_step_s == []


def test_a_prompt_of_one_token():
    ids = torch.tensor([[7]])
    correction = Correction(period=4, threshold=1.1, draft=_HALF)
    output = generate_exact(_adapter(), ids, settings=_settings(), correction=correction)
    assert output.answers == _plain(_adapter(), ids)


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.3, 1.1])
@pytest.mark.parametrize("policy", ["hold", "retract", "commit"])
def test_after_it_all_the_cache_is_a_teacher_forced_one(threshold, policy):
    adapter, ids = _adapter(), _PROMPTS[2][None]
    correction = Correction(period=5, threshold=threshold, policy=policy, draft=_HALF)
    output = generate_exact(
        adapter, ids, settings=_settings(keep_context=True), correction=correction
    )
    assert_teacher_forced(adapter.model, output.context)


def _reference_loop(adapter, ids, correction, new: int) -> list[int]:
    """Sirius 3.1 by its own steps, every draft and every check a forward over the whole text."""
    sparse = SparseBase(adapter)
    statistics = NeuronStatistics(sparse.parts)
    with torch.no_grad(), statistics.recording(torch.ones_like(ids, dtype=torch.bool)):
        logits = adapter.model(ids).logits
    answer = [int(logits[0, -1].argmax())]
    while len(answer) < new:
        settled = len(answer)
        # A sparse step sees exact rows of all settled tokens but the last, and sparse ones after.
        cache = RecordingCache()
        with torch.no_grad():
            text = torch.cat([ids, torch.tensor([answer[:-1]], dtype=torch.long)], dim=1)
            adapter.model(text, cache=cache, use_cache=True)
            model = sparse.by_prompt(statistics, correction.draft)
            while len(answer) < min(new, settled + correction.period - 1):
                step = model(torch.tensor([answer[-1:]]), cache=cache, use_cache=True)
                answer.append(int(step.logits[0, -1].argmax()))
            text = torch.cat([ids, torch.tensor([answer])], dim=1)
            logits = adapter.model(text).logits[0, ids.shape[1] + settled - 1 :]
        q = (logits[:-1] / correction.temperature).softmax(-1)
        drafts = answer[settled:]
        kept = 0
        while kept < len(drafts) and q[kept, drafts[kept]] >= correction.threshold:
            kept += 1
        answer = answer[: settled + kept]
        if len(answer) < new:
            answer.append(int(logits[kept].argmax()))
    return answer


@settings(deadline=None, max_examples=25)
@given(
    st.integers(2, 6),
    st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.6]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(1, 15),
    st.integers(0, 99),
)
def test_the_loop_is_that_of_the_paper(period, threshold, keep, new, seed):
    correction = Correction(period=period, threshold=threshold, draft=CSparse(keep))
    ids = random_ids(1, 4 + seed % 9, seed=seed)
    output = generate_exact(
        _adapter(), ids, settings=_settings(max_new_tokens=new), correction=correction
    )
    assert output.answers[0] == _reference_loop(_adapter(), ids, correction, new)


@pytest.mark.parametrize("static", [False, True])
def test_a_batch_is_its_prompts_alone(static):
    correction = Correction(period=4, threshold=0.05, draft=FSparse(0.3))
    adapter = _adapter()
    ids, mask = left_padded(_PROMPTS)
    chosen = _settings(static_cache=static)
    together = generate_exact(adapter, ids, mask, settings=chosen, correction=correction)
    for row, prompt in enumerate(_PROMPTS):
        alone = generate_exact(adapter, prompt[None], settings=chosen, correction=correction)
        assert together.answers[row] == alone.answers[0]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("period", [2, 4, 7])
@pytest.mark.parametrize("slowest", [0, 1, 2])
def test_entries_may_advance_at_any_speed(family, static, period, slowest, monkeypatch):
    """One entry gains a token a period, the others whole periods, and finish long before it."""

    def verdicts(_logits, tokens, lengths, **_):
        return torch.where(torch.arange(len(tokens)) == slowest, 0, lengths)

    monkeypatch.setattr(reconciliation, "accepted_prefix", verdicts)
    # The longest prompt and its answer take all positions that there are.
    limit = "n_positions" if family == "gpt2" else "max_position_embeddings"
    base = tiny_model(family, weight_scale=8.0, **{limit: 14 + 30})
    correction = Correction(period=period, threshold=0.5, draft=FSparse(0.2))
    settings = _settings(max_new_tokens=30, static_cache=static, sampling=Sampling(0.7, seed=1))
    ids, mask = left_padded(_PROMPTS)
    output = generate_exact(
        FamilyAdapter(base), ids, mask, settings=settings, correction=correction
    )
    assert [len(answer) for answer in output.answers] == [30] * 3
    greedy = generate_exact(
        FamilyAdapter(base), ids, mask, settings=_settings(max_new_tokens=30, static_cache=static),
        correction=correction,
    )  # fmt: skip
    plain = _plain(FamilyAdapter(base), ids, mask, max_new_tokens=30)
    assert greedy.answers[slowest] == plain[slowest]


def test_end_of_sequence_in_a_draft_counts_only_once_it_is_accepted():
    adapter, ids = _adapter(), _PROMPTS[0][None]
    free = generate_exact(
        adapter, ids, settings=_settings(), correction=Correction(4, 0.0, draft=_HALF)
    ).answers[0]
    plain = _plain(adapter, ids)[0]
    drafted = next(t for i, t in enumerate(free) if i % 4 and t not in plain)
    settings = _settings(eos_ids=(drafted,))
    kept = generate_exact(
        adapter, ids, settings=settings, correction=Correction(4, 0.0, draft=_HALF)
    )
    assert kept.answers[0] == free[: free.index(drafted) + 1]
    rolled = generate_exact(
        adapter, ids, settings=settings, correction=Correction(4, 1.1, draft=_HALF)
    )
    assert rolled.answers[0] == plain


@pytest.mark.parametrize("policy", ["hold", "retract", "commit"])
def test_events_tell_the_text(policy):
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(period=4, threshold=0.3, policy=policy, draft=CSparse(0.1))
    shown: list[list[int]] = [[] for _ in _PROMPTS]
    retracted = 0
    events = stream_exact(_adapter(), ids, mask, settings=_settings(), correction=correction)
    while True:
        try:
            event = next(events)
        except StopIteration as end:
            output = end.value
            break
        if isinstance(event, TokenEvent):
            shown[event.row].append(event.token)
        elif isinstance(event, RetractionEvent):
            del shown[event.row][-event.count :]
            retracted += event.count
    assert shown == output.answers
    assert (retracted > 0) == (policy == "retract")
    if policy == "commit":
        assert output.stats.unrecoverable > 0
        assert output.stats.retracted == 0


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@pytest.mark.parametrize("slice_rows", [None, 3])
@pytest.mark.parametrize("static", [False, True])
def test_joined_with_a_predicted_prompt(kind, slice_rows, static):
    model = _joined(kind)
    ids, mask = left_padded(_PROMPTS)
    strict = Correction(4, 1.1, slice_rows=slice_rows, draft=_HALF)
    chosen = {"max_new_tokens": 17, "eos_ids": (), "static_cache": static}
    assert model.generate(ids, mask, correction=strict, **chosen).answers == _plain(
        model.adapter, ids, mask
    )
    # Once the prompt is exact the statistics are those of a plain prefill, and so is the draft.
    loose = Correction(4, 0.0, slice_rows=slice_rows, draft=_HALF)
    output = model.generate(_PROMPTS[2][None], correction=loose, **chosen)
    assert output.stats.sparse_step_s
    assert output.stats.aal == 4


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@pytest.mark.parametrize("slice_rows", [None, 1, 5])
def test_statistics_of_slices_are_those_of_a_plain_prefill(kind, slice_rows, monkeypatch):
    made = []
    original = sparse_draft.NeuronStatistics

    def record(parts):
        made.append(original(parts))
        return made[-1]

    monkeypatch.setattr(sparse_draft, "NeuronStatistics", record)
    model, ids = _joined(kind), _PROMPTS[2][None]
    correction = Correction(2, 0.0, slice_rows=slice_rows, draft=_HALF)
    model.generate(ids, correction=correction, max_new_tokens=30, eos_ids=())
    generate_exact(model.adapter, ids, settings=_settings(), correction=Correction(4, draft=_HALF))
    sliced, plain = made
    assert sliced.tokens == plain.tokens == [14] * 4
    for a, b in zip(sliced.squares, plain.squares, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", _FAMILIES)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("draft", [CSparse(0.25), FSparse(0.25)])
def test_lossless_acceptance_is_plain_greedy(family, static, draft):
    adapter = _adapter(family)
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(period=5, threshold=0.0, draft=draft, acceptance="lossless")
    output = generate_exact(
        adapter, ids, mask, settings=_settings(static_cache=static), correction=correction
    )
    assert output.answers == _plain(adapter, ids, mask)
    assert max(output.stats.advances) > 1


@pytest.mark.parametrize("kind", ["prefix", "pruned"])
@pytest.mark.parametrize("draft", [None, _HALF])
@pytest.mark.parametrize("slice_rows", [None, 3])
def test_lossless_acceptance_of_a_predicted_prompt_is_plain_greedy(kind, draft, slice_rows):
    model = _joined(kind)
    ids, mask = left_padded(_PROMPTS)
    correction = Correction(
        period=5, threshold=0.0, draft=draft, acceptance="lossless", slice_rows=slice_rows
    )
    output = model.generate(ids, mask, correction=correction, max_new_tokens=17, eos_ids=())
    assert output.answers == _plain(model.adapter, ids, mask)


def test_lossless_acceptance_samples_from_the_base():
    """Second tokens of many answers at once are distributed as the base's own."""
    adapter, n = _adapter(), 4000
    ids = torch.tensor([[5, 9, 3]]).expand(n, -1)
    correction = Correction(period=3, draft=CSparse(0.1), acceptance="lossless")
    settings = _settings(max_new_tokens=2, sampling=Sampling(1.0, top_k=3, seed=0))
    output = generate_exact(adapter, ids, settings=settings, correction=correction)
    first = torch.tensor([answer[0] for answer in output.answers])
    second = torch.tensor([answer[1] for answer in output.answers])
    token = int(first.mode().values)
    with torch.no_grad():
        logits = adapter.model(torch.tensor([[5, 9, 3, token]])).logits[0, -1]
    best = logits.topk(3)
    drawn = second[first == token]
    shares = torch.stack([(drawn == t).float().mean() for t in best.indices])
    torch.testing.assert_close(shares, best.values.softmax(-1), atol=0.04, rtol=0)
    assert 0 < output.stats.accepted < output.stats.drafted


def _ablated(adapter, ids, correction, new: int) -> list[int]:
    """Sirius 3.5 by its own words, on a cache that is copied for every pass."""
    sparse = SparseBase(adapter)
    statistics = NeuronStatistics(sparse.parts)
    rows = RecordingCache()
    with torch.no_grad(), statistics.recording(torch.ones_like(ids, dtype=torch.bool)):
        logits = adapter.model(ids, cache=rows, use_cache=True).logits
    model = sparse.by_prompt(statistics, correction.draft)

    def run(which, tokens):
        with torch.no_grad():
            return which(torch.tensor([tokens]), cache=rows, use_cache=True).logits[0]

    answer = [int(logits[0, -1].argmax())]
    while len(answer) < new:
        settled, held = len(answer), rows.get_seq_length()
        while len(answer) < min(new, settled + correction.period - 1):
            answer.append(int(run(model, answer[-1:])[-1].argmax()))
        run(model, answer[-1:])
        drafted_rows = copy.deepcopy(rows)
        rows.crop(held - rows.get_seq_length())
        logits = run(adapter.model, answer[settled - 1 :])
        drafts = answer[settled:]
        q = (logits[:-1] / correction.temperature).softmax(-1)
        kept = 0
        while kept < len(drafts) and q[kept, drafts[kept]] >= correction.threshold:
            kept += 1
        if not correction.rollback:
            kept = len(drafts)
        if not correction.kv_rewriting:
            rows = drafted_rows
        adds = correction.interleave or kept < len(drafts)
        surplus = len(drafts) - kept + (not adds)
        if surplus:
            rows.crop(-surplus)
        answer = answer[: settled + kept]
        if adds and len(answer) < new:
            answer.append(int(logits[kept].argmax()))
    return answer


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 6),
    st.sampled_from([0.01, 0.05, 0.2, 0.6]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 15),
    st.integers(0, 99),
)
def test_ablations_are_those_of_the_paper(
    period, threshold, kv_rewriting, rollback, interleave, new, seed
):
    correction = Correction(
        period=period,
        threshold=threshold,
        draft=CSparse(0.2),
        kv_rewriting=kv_rewriting,
        rollback=rollback,
        interleave=interleave,
    )
    ids = random_ids(1, 4 + seed % 9, seed=seed)
    output = generate_exact(
        _adapter(), ids, settings=_settings(max_new_tokens=new), correction=correction
    )
    assert output.answers[0] == _ablated(_adapter(), ids, correction, new)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("switches", list(product([False, True], repeat=3)))
def test_ablations_of_a_batch_are_those_of_its_prompts(static, switches):
    names = ("kv_rewriting", "rollback", "interleave")
    chosen = dict(zip(names, switches, strict=True))
    correction = Correction(period=4, threshold=0.05, draft=FSparse(0.3), **chosen)
    ids, mask = left_padded(_PROMPTS)
    settings = _settings(static_cache=static)
    together = generate_exact(_adapter(), ids, mask, settings=settings, correction=correction)
    for row, prompt in enumerate(_PROMPTS):
        alone = generate_exact(_adapter(), prompt[None], settings=settings, correction=correction)
        assert together.answers[row] == alone.answers[0]
    # A predicted prompt becomes exact in any case.
    model = _joined("prefix")
    strict = Correction(period=4, threshold=1.1, draft=FSparse(1.0), **chosen)
    output = model.generate(ids, mask, correction=strict, max_new_tokens=5, eos_ids=())
    first = [answer[0] for answer in output.answers]
    assert first == [answer[0] for answer in _plain(model.adapter, ids, mask)]


def test_rows_of_a_sparse_draft_are_no_context():
    correction = Correction(period=4, draft=_HALF, kv_rewriting=False)
    with pytest.raises(ConfigurationError, match="kv_rewriting brings; leave it on"):
        generate_exact(
            _adapter(), random_ids(1, 4), settings=_settings(keep_context=True),
            correction=correction,
        )  # fmt: skip
