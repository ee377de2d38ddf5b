from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lit_kvpred.errors import BaseModelError, CheckpointError
from lit_kvpred.model.artefact import base_reference, check_base
from lit_kvpred.model.auxiliary import build_auxiliary
from lit_kvpred.model.kv_prediction import KVPredictionModel
from tests.tiny_models import predicting_model, random_ids, tiny_model

_PRUNED_FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma2", "gemma3_text", "cohere2", "smollm3")


@pytest.fixture
def base():
    return tiny_model("llama")


@pytest.fixture
def folder(base, tmp_path):
    """An artefact of a model for ``base``."""
    place = tmp_path / "artefact"
    predicting_model(base).save_pretrained(place)
    return place


def _assert_same(model: KVPredictionModel, loaded: KVPredictionModel) -> None:
    """Weights and logits agree bit for bit."""
    for part in ("auxiliary", "predictor"):
        before = dict(getattr(model, part).named_parameters())
        after = dict(getattr(loaded, part).named_parameters())
        assert set(before) == set(after)
        assert all(torch.equal(before[name], after[name]) for name in before)
    ids = random_ids(2, 11)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits)
        assert torch.equal(model(ids).auxiliary_logits, loaded(ids).auxiliary_logits)
    assert torch.equal(model.prefill(ids).logits, loaded.prefill(ids).logits)


@pytest.mark.parametrize("family", _PRUNED_FAMILIES)
def test_a_pruned_model_comes_back_bit_for_bit(family, tmp_path):
    base = tiny_model(family)
    model = predicting_model(base, keep=[0, 2, 3])
    model.save_pretrained(tmp_path / "artefact")
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact", base=base)
    assert loaded.base is base
    assert loaded.auxiliary.describe() == model.auxiliary.describe()
    assert loaded.predictor.features.layer_map == [0, 0, 1, 2]
    assert not loaded.training
    _assert_same(model, loaded)


def test_a_canonical_model_comes_back_bit_for_bit(base, tmp_path):
    small = tiny_model("gpt2", n_layer=3, seed=5)
    auxiliary = build_auxiliary(base, "canonical", source=small)
    model = KVPredictionModel(base, auxiliary, init="least_squares", layer_map=[2, 1, 1, 0])
    model.eval().fit_least_squares([random_ids(2, 30)])
    model.save_pretrained(str(tmp_path / "artefact"))
    loaded = KVPredictionModel.from_pretrained(str(tmp_path / "artefact"), base=base)
    assert loaded.init == "least_squares"
    assert loaded.auxiliary.kind == "canonical"
    assert loaded.predictor.features.layer_map == [2, 1, 1, 0]
    _assert_same(model, loaded)


def test_tied_embeddings_come_back_tied(tmp_path):
    base = tiny_model("llama", tie_word_embeddings=True)
    model = predicting_model(base)
    model.save_pretrained(tmp_path / "artefact")
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact", base=base)
    network = loaded.auxiliary.model
    assert network.lm_head.weight is network.model.embed_tokens.weight
    _assert_same(model, loaded)


def test_a_loaded_model_can_be_trained_on(base, folder):
    loaded = KVPredictionModel.from_pretrained(folder, base=base)
    loaded(random_ids(1, 5)).logits.sum().backward()
    assert all(p.grad is not None for p in loaded.predictor.parameters())
    assert all(p.requires_grad for p in loaded.auxiliary.parameters())


def test_the_base_is_found_by_its_name(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    base = type(tiny_model("llama")).from_pretrained(tmp_path / "base")
    model = predicting_model(base.eval())
    model.save_pretrained(tmp_path / "artefact")
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact")
    assert loaded.base is not base
    _assert_same(model, loaded)


def test_the_base_is_stored_by_reference_only(base, folder):
    stored = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    weights = sum(
        4 * p.numel()
        for part in (predicting_model(base).auxiliary, predicting_model(base).predictor)
        for p in part.parameters()
    )
    assert weights < stored < weights + 20_000
    description = json.loads((folder / "config.json").read_text())
    assert description["base"] == base_reference(base)
    assert description["auxiliary"] == {"kind": "pruned", "source": None, "kept": [0, 2]}
    names = {file.name for file in folder.rglob("*") if file.is_file()}
    assert not any(name.endswith((".bin", ".pt", ".pkl", ".ckpt")) for name in names)


def test_an_artefact_without_the_name_of_its_base_asks_for_it(folder):
    with pytest.raises(CheckpointError, match="does not name its base; pass `base`"):
        KVPredictionModel.from_pretrained(folder)


# -- another base --------------------------------------------------------------------------------


def _one_weight_changed(base):
    with torch.no_grad():
        base.model.layers[2].mlp.down_proj.weight[3, 4] += 0.5
    return base


def _other_setting(_base):
    return tiny_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})


@pytest.mark.parametrize("other", [_one_weight_changed, _other_setting])
def test_another_base_is_refused(base, folder, other):
    with pytest.raises(CheckpointError, match="load it with the base it was trained for") as error:
        KVPredictionModel.from_pretrained(folder, base=other(base))
    assert "\n" not in str(error.value)


def test_the_same_base_in_another_attention_implementation_is_accepted(folder):
    base = tiny_model("llama", attn_implementation="eager")
    assert KVPredictionModel.from_pretrained(folder, base=base).base is base


def test_a_named_base_that_changed_on_disk_is_refused(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    base = type(tiny_model("llama")).from_pretrained(tmp_path / "base").eval()
    predicting_model(base).save_pretrained(tmp_path / "artefact")
    tiny_model("llama", seed=1).save_pretrained(tmp_path / "base")
    with pytest.raises(CheckpointError, match="was trained for base"):
        KVPredictionModel.from_pretrained(tmp_path / "artefact")


def test_checking_a_base():
    base = tiny_model("llama")
    reference = base_reference(base)
    check_base(base, reference, "here")
    with pytest.raises(CheckpointError, match="here was trained for base"):
        check_base(base, reference | {"fingerprint": "0" * 64}, "here")


# -- damage --------------------------------------------------------------------------------------


def _truncate(file) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def _edit(folder, **changes) -> None:
    description = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        if value is None:
            del description[name]
        else:
            description[name] = value
    (folder / "config.json").write_text(json.dumps(description))


def _edit_part(folder, part, **changes) -> None:
    description = json.loads((folder / "config.json").read_text())
    description[part] |= changes
    (folder / "config.json").write_text(json.dumps(description))


def _weights(folder, change) -> None:
    """One tensor of the folder changed."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[-1]
    tensors[name] = change(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


_DAMAGE = {
    "no folder": lambda f: f.rename(f.with_name("elsewhere")),
    "no config": lambda f: (f / "config.json").unlink(),
    "config cut": lambda f: _truncate(f / "config.json"),
    "config empty": lambda f: (f / "config.json").write_text(""),
    "config binary": lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00\x81"),
    "config a folder": lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
    "config a list": lambda f: (f / "config.json").write_text("[]"),
    "config a string": lambda f: (f / "config.json").write_text('"format"'),
    "config null": lambda f: (f / "config.json").write_text("null"),
    "another format": lambda f: _edit(f, format=99),
    "no format": lambda f: _edit(f, format=None),
    "no layer map": lambda f: _edit(f, layer_map=None),
    "short layer map": lambda f: _edit(f, layer_map=[0, 0, 1]),
    "layer map of text": lambda f: _edit(f, layer_map="0011"),
    "unknown features": lambda f: _edit(f, features="colour"),
    "base of text": lambda f: _edit(f, base="llama"),
    "base without fingerprint": lambda f: _edit(f, base={"source": None, "revision": None}),
    "auxiliary without kind": lambda f: _edit(f, auxiliary={"source": None, "kept": None}),
    "base of a number": lambda f: _edit_part(f, "base", source=5),
    "base without name": lambda f: _edit_part(f, "base", source=""),
    "base of a list": lambda f: _edit_part(f, "base", source=["a"]),
    "dtype of a list": lambda f: _edit_part(f, "base", dtype=[1]),
    "unknown dtype": lambda f: _edit_part(f, "base", dtype="nonsense"),
    "revision of a number": lambda f: _edit_part(f, "base", revision=1),
    "auxiliary of text": lambda f: _edit(f, auxiliary="prefix"),
    "unknown kind": lambda f: _edit_part(f, "auxiliary", kind="colour"),
    "kind of a list": lambda f: _edit_part(f, "auxiliary", kind=["prefix"]),
    "prefix without depth": lambda f: _edit(f, auxiliary={"kind": "prefix"}),
    "depth of text": lambda f: _edit(f, auxiliary={"kind": "prefix", "depth": "x"}),
    "depth true": lambda f: _edit(f, auxiliary={"kind": "prefix", "depth": True}),
    "depth beyond the base": lambda f: _edit(f, auxiliary={"kind": "prefix", "depth": 99}),
    "kept of text": lambda f: _edit_part(f, "auxiliary", kept="02"),
    "rank of text": lambda f: _edit(f, rank="x"),
    "rank true": lambda f: _edit(f, rank=True),
    "rank of a fraction": lambda f: _edit(f, rank=1.5),
    "rank beyond the features": lambda f: _edit(f, rank=10**9),
    "exact tail of text": lambda f: _edit(f, exact_tail="x"),
    "unknown init": lambda f: _edit(f, init="colour"),
    "deep nesting": lambda f: (f / "config.json").write_text("[" * 100_000),
    "a number of too many digits": lambda f: (f / "config.json").write_text("1" * 5000),
    "weights NaN": lambda f: _weights(f, lambda w: w.fill_(float("nan"))),
    "weights infinite": lambda f: _weights(f, lambda w: w.view(-1)[:1].fill_(float("inf"))),
    "weights of integers": lambda f: _weights(f, lambda w: w.int()),
    "auxiliary NaN": lambda f: _weights(f / "auxiliary", lambda w: w.fill_(float("nan"))),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "weights cut": lambda f: _truncate(f / "model.safetensors"),
    "weights empty": lambda f: (f / "model.safetensors").write_bytes(b""),
    "no auxiliary": lambda f: (f / "auxiliary").rename(f / "moved"),
    "auxiliary cut": lambda f: _truncate(f / "auxiliary" / "model.safetensors"),
    "auxiliary without config": lambda f: (f / "auxiliary" / "config.json").unlink(),
    "auxiliary garbled": lambda f: (f / "auxiliary" / "config.json").write_text("{"),
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_artefact_is_refused_in_one_line(base, folder, damage):
    _DAMAGE[damage](folder)
    with pytest.raises(CheckpointError) as error:
        KVPredictionModel.from_pretrained(folder, base=base)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_weights_of_another_shape_are_refused(base, folder, tmp_path):
    small = build_auxiliary(base, "canonical", source=tiny_model("gpt2", n_embd=24, n_head=3))
    KVPredictionModel(base, small).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="does not fit its own description") as error:
        KVPredictionModel.from_pretrained(folder, base=base)
    assert "\n" not in str(error.value)


def test_a_file_instead_of_the_folder(base, folder):
    with pytest.raises(CheckpointError, match="config.json is a file; pass the folder"):
        KVPredictionModel.from_pretrained(folder / "config.json", base=base)


def test_a_base_that_is_gone_can_be_named(base, folder):
    _edit_part(folder, "base", source="/nowhere/base")
    with pytest.raises(BaseModelError, match=r"no such folder.*pass `base` \(--base\)") as error:
        KVPredictionModel.from_pretrained(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("part", ["auxiliary", "predictor"])
def test_weights_that_are_not_finite_are_not_written(base, folder, part):
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    model = predicting_model(base, seed=8)
    with torch.no_grad():
        next(getattr(model, part).parameters()).view(-1)[-1] = float("inf")
    with pytest.raises(CheckpointError, match="holds values that are not finite; go back"):
        model.save_pretrained(folder)
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before


# -- writing -------------------------------------------------------------------------------------


def test_an_earlier_artefact_is_replaced(base, folder):
    model = predicting_model(base, keep=[0, 1, 3], seed=8)
    model.save_pretrained(folder)
    loaded = KVPredictionModel.from_pretrained(folder, base=base)
    assert loaded.auxiliary.kept == [0, 1, 3]
    _assert_same(model, loaded)
    assert [f.name for f in folder.parent.iterdir()] == [folder.name]


def test_an_interrupted_write_leaves_the_earlier_artefact(base, folder, monkeypatch):
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    model = predicting_model(base, seed=8)

    def full(*_arguments, **_keywords):
        raise OSError("No space left on device")

    monkeypatch.setattr(model.auxiliary.model, "save_pretrained", full)
    with pytest.raises(CheckpointError, match="can't write the artefact .*No space left"):
        model.save_pretrained(folder)
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before
    assert [f.name for f in folder.parent.iterdir()] == [folder.name]


def test_a_folder_that_cannot_be_made_is_an_error(base, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="can't write the artefact") as error:
        predicting_model(base).save_pretrained(tmp_path / "file" / "artefact")
    assert "\n" not in str(error.value)


def test_a_disk_that_refuses_the_weights_is_an_error(base, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def refuse(*_arguments, **_keywords):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr("lit_kvpred.model.artefact.save_file", refuse)
    with pytest.raises(CheckpointError, match="can't write the artefact"):
        predicting_model(base).save_pretrained(tmp_path / "artefact")
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_made(base, tmp_path):
    predicting_model(base).save_pretrained(tmp_path / "a" / "b" / "artefact")
    assert (tmp_path / "a" / "b" / "artefact" / "config.json").exists()


def _saved_or_refused(model, folder) -> bool:
    """Whether the artefact was written; where it wasn't, the reason is one line."""
    try:
        model.save_pretrained(folder)
    except CheckpointError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
        return False
    return True


def test_a_folder_with_other_things_in_it_loses_none_of_them(base, tmp_path):
    precious = tmp_path / "project" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("years of work")
    _saved_or_refused(predicting_model(base), precious.parent)
    assert precious.read_text() == "years of work"


def test_an_empty_folder_is_used(base, tmp_path):
    (tmp_path / "artefact").mkdir()
    predicting_model(base).save_pretrained(tmp_path / "artefact")
    assert KVPredictionModel.from_pretrained(tmp_path / "artefact", base=base).base is base


def test_the_current_folder(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if _saved_or_refused(predicting_model(base), "."):
        assert KVPredictionModel.from_pretrained(tmp_path, base=base).base is base
