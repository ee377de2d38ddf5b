from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lit_kvpred.errors import BaseModelError, ConfigurationError
from lit_kvpred.model.loading import load_base, load_tokenizer
from lit_kvpred.model.tokenizers import check_same_tokenizer
from lit_kvpred.prepare import demo
from lit_kvpred.prepare.demo import DEMO_SIZES, prepare_demo
from lit_kvpred.prepare.demo_corpus import demo_documents, token_row

_WORDS = ("alpha", "beta", "gamma", "delta")


def _documents(split: str) -> list[str]:
    return [
        "\n".join(f"def {a}_{b}_{i}(x):\n    return {b}_{split}(x)" for a in _WORDS for b in _WORDS)
        for i in range(6)
    ]


@pytest.fixture(autouse=True)
def _small_text(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(demo, "demo_documents", _documents)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, list[str]]:
    """The model after three steps, and what was reported on the way."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "demo_documents", _documents)
        torch.manual_seed(123)
        out = prepare_demo(tmp_path_factory.mktemp("demo") / "demo", steps=3, report=lines.append)
    return out, lines


def _silent(_: str) -> None:
    pass


def _digests(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


def test_a_few_steps_give_a_whole_model_folder(trained):
    out, lines = trained
    model, tokenizer = load_base(out), load_tokenizer(out)
    assert model.config.num_hidden_layers == 6
    assert model.config.max_position_embeddings >= 1024
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    ids = tokenizer("def alpha", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, ids.shape[1] + 3)
    assert lines[-1].startswith("held-out loss")


def test_same_seed_gives_the_same_bits(trained, tmp_path):
    again = prepare_demo(tmp_path / "again", steps=3, report=_silent)
    assert _digests(again) == _digests(trained[0])


@pytest.mark.parametrize("change", [{"seed": 1}, {"steps": 4}])
def test_another_seed_or_length_gives_another_model(trained, tmp_path, change):
    other = prepare_demo(tmp_path / "other", **{"steps": 3, **change}, report=_silent)
    name = "model.safetensors"
    assert _digests(other)[name] != _digests(trained[0])[name]


def test_held_out_text_leaves_no_trace_in_the_model(trained, tmp_path, monkeypatch):
    def other_held_out(split: str) -> list[str]:
        return _documents(split) if split == "train" else ["quite other text " * 400]

    monkeypatch.setattr(demo, "demo_documents", other_held_out)
    other = prepare_demo(tmp_path / "other", steps=3, report=_silent)
    assert _digests(other) == _digests(trained[0])


def test_training_lowers_the_loss(trained, tmp_path):
    lines: list[str] = []
    prepare_demo(tmp_path / "longer", steps=24, report=lines.append)
    assert float(lines[-1].split()[2]) < float(trained[1][-1].split()[2]) - 1


def test_random_state_of_the_caller_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    prepare_demo(tmp_path / "demo", steps=1, report=_silent)
    assert torch.equal(torch.rand(3), expected)


def test_windows_grow_and_every_step_has_as_many_tokens():
    tokens = torch.arange(5000)
    batches = list(demo._batches(tokens, steps=8))
    shapes = [tuple(batch.shape) for batch in batches]
    assert shapes == [(4, 129)] * 4 + [(2, 257)] * 2 + [(1, 513)] * 2
    assert all(torch.equal(b[:, 1:], b[:, :-1] + 1) for b in batches)


def test_neighbour_vectors_put_tokens_with_the_same_neighbours_side_by_side():
    # 0 and 1 are interchangeable between 2 and 3; 4 stands elsewhere.
    choice = torch.randint(2, (400,))
    tokens = torch.stack([torch.full((400,), 2), choice, torch.full((400,), 3)], 1).flatten()
    others = torch.randint(4, 200, (4000,))
    vectors = demo._neighbour_vectors(torch.cat([tokens, others]), 200, 128)
    assert vectors.shape == (200, 128)
    assert F.cosine_similarity(vectors[0], vectors[1], dim=0) > 0.9
    assert F.cosine_similarity(vectors[0], vectors[4], dim=0) < 0.5


def test_the_small_one_is_a_sibling_with_the_same_tokenizer(trained, tmp_path):
    out, _ = trained
    small = prepare_demo(tmp_path / "small", steps=1, size=DEMO_SIZES["demo-small"], report=_silent)
    config = load_base(small).config
    assert (config.num_hidden_layers, config.hidden_size) == (3, 64)
    check_same_tokenizer(load_tokenizer(out), load_tokenizer(small))


def test_second_call_trains_nothing(trained, monkeypatch):
    out, _ = trained
    monkeypatch.setattr(demo, "_train", lambda *_: pytest.fail("trained again"))
    lines: list[str] = []
    assert prepare_demo(out, steps=3, report=lines.append) == out
    assert lines == [f"{out} already holds this model"]
    with pytest.raises(BaseModelError, match="does not hold exactly this model"):
        prepare_demo(out, steps=2, report=_silent)


def test_interrupted_training_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare_demo(tmp_path / "demo", report=_silent)
    assert list(tmp_path.iterdir()) == []


def test_no_steps_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="at least one step, got 0"):
        prepare_demo(tmp_path / "demo", steps=0)


@pytest.mark.slow
def test_full_training_beats_counting_pairs_of_tokens(tmp_path):
    out = prepare_demo(tmp_path / "demo", report=_silent)
    model, tokenizer = load_base(out), load_tokenizer(out)
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 3e6
    train = token_row(tokenizer, demo_documents("train"))
    held_out = token_row(tokenizer, demo_documents("validation"))
    rows = held_out[: len(held_out) // 512 * 512].view(-1, 512)[::4]
    with torch.no_grad():
        losses = torch.stack(
            [
                F.cross_entropy(model(row[None, :-1]).logits[0], row[1:], reduction="none")
                for row in rows
            ]
        )
    assert losses.mean() < _bigram_loss(train, rows, len(tokenizer)) - 0.15
    # Long prompts are read as well as short ones.
    assert losses[:, -128:].mean() < losses[:, :128].mean() + 0.1


def _bigram_loss(train: torch.Tensor, rows: torch.Tensor, size: int) -> float:
    """Counts, interpolated with single tokens by the best of several strengths."""
    single = (torch.bincount(train, minlength=size) + 0.1) / (len(train) + 0.1 * size)
    pairs = torch.bincount(train[:-1] * size + train[1:], minlength=size**2).view(size, size)
    best = math.inf
    for strength in (10, 30, 100, 300):
        chances = (pairs + strength * single) / (pairs.sum(1, keepdim=True) + strength)
        best = min(best, -chances[rows[:, :-1], rows[:, 1:]].log().mean().item())
    return best
