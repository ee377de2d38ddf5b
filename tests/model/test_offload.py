from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lit_kvpred.errors import CheckpointError
from lit_kvpred.model.offload import AuxiliaryStore
from lit_kvpred.sirius.correction import Correction
from tests.tiny_models import predicting_model, random_ids, tiny_model


def _module() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def _assert_holds(module: nn.Module, values: dict[str, torch.Tensor]) -> None:
    assert {name for name, _ in module.named_parameters()} == set(values)
    for name, parameter in module.named_parameters():
        assert parameter.dtype == values[name].dtype
        assert torch.equal(parameter.detach(), values[name]), name


def test_released_weights_take_no_memory_and_come_back_bit_for_bit():
    module, store = _module(), AuxiliaryStore()
    with torch.no_grad():
        module[0].weight[0, 0] = torch.nan
        module[0].weight[0, 1] = -0.0
    values = _values(module)
    identities = [id(parameter) for parameter in module.parameters()]
    store.release(module)
    assert [parameter.numel() for parameter in module.parameters()] == [0] * 4
    store.restore()
    assert [id(parameter) for parameter in module.parameters()] == identities
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.detach().view(torch.int32), values[name].view(torch.int32))


def test_releasing_and_restoring_twice_does_nothing():
    module, store = _module(), AuxiliaryStore()
    values = _values(module)
    store.restore()
    store.release(module)
    store.release(module)
    assert all(parameter.numel() == 0 for parameter in module.parameters())
    store.restore()
    store.restore()
    _assert_holds(module, values)


def test_reduced_precision_weights_keep_their_type():
    module, store = _module().bfloat16(), AuxiliaryStore()
    values = _values(module)
    store.release(module)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    store.restore()
    _assert_holds(module, values)


def _written(store: AuxiliaryStore) -> tuple[int, int]:
    status = store._file.stat()
    return status.st_ino, status.st_mtime_ns


def test_weights_are_written_once_while_they_do_not_change():
    module, store = _module(), AuxiliaryStore()
    store.release(module)
    before = _written(store)
    store.restore()
    store.release(module)
    assert _written(store) == before


@pytest.mark.parametrize("change", ["in place", "optimizer", "load_state_dict"])
def test_weights_that_changed_are_written_again(change):
    module, store = _module(), AuxiliaryStore()
    store.release(module)
    store.restore()
    if change == "in place":
        with torch.no_grad():
            module[0].bias.add_(1)
    elif change == "optimizer":
        module(torch.ones(2, 3)).square().sum().backward()
        torch.optim.AdamW(module.parameters(), lr=0.1).step()
    else:
        module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})
    values = _values(module)
    store.release(module)
    saved = load_file(store._file)
    assert all(torch.equal(saved[name], values[name]) for name in values)
    store.restore()
    _assert_holds(module, values)


@pytest.mark.parametrize("change", ["vector_to_parameters", "bfloat16"])
def test_weights_that_were_exchanged_are_written_again(change):
    """Neither way is seen by the parameters' version counters."""
    module, store = _module(), AuxiliaryStore()
    store.release(module)
    store.restore()
    if change == "bfloat16":
        module.bfloat16()
    else:
        vector = nn.utils.parameters_to_vector(module.parameters()).detach()
        nn.utils.vector_to_parameters(vector + 1, module.parameters())
    values = _values(module)
    store.release(module)
    store.restore()
    _assert_holds(module, values)


def test_a_folder_that_takes_nothing_leaves_the_weights_in_memory():
    module, store = _module(), AuxiliaryStore()
    values = _values(module)
    shutil.rmtree(store._folder.name)
    with pytest.raises(CheckpointError, match="can't off-load the auxiliary") as error:
        store.release(module)
    assert "\n" not in str(error.value)
    _assert_holds(module, values)
    store.restore()
    _assert_holds(module, values)


def test_the_file_goes_with_the_store():
    store = AuxiliaryStore()
    store.release(_module())
    folder = Path(store._folder.name)
    assert folder.exists()
    del store
    assert not folder.exists()


# -- through the joined model --------------------------------------------------------------------


def _numel(model) -> int:
    return sum(p.numel() for part in (model.auxiliary, model.predictor) for p in part.parameters())


def test_a_released_auxiliary_comes_back_for_the_next_prompt():
    model, ids = predicting_model(tiny_model("llama", weight_scale=8.0)), random_ids(2, 9)
    values = _values(model)
    settings = {"max_new_tokens": 5, "eos_ids": (), "correction": Correction(3, 0.01)}
    expected = model.generate(ids, **settings).answers
    first = model.prefill(ids).logits
    model.release_auxiliary()
    assert _numel(model) == 0
    assert all(p.numel() > 0 for p in model.base.parameters())
    assert model.generate(ids, **settings).answers == expected
    model.release_auxiliary()
    assert torch.equal(model.prefill(ids).logits, first)
    _assert_holds(model, values)


def test_generation_may_release_the_auxiliary_while_the_base_decodes():
    model, ids = predicting_model(tiny_model("llama", weight_scale=8.0)), random_ids(2, 9)
    values = _values(model)
    settings = {"max_new_tokens": 5, "eos_ids": (), "correction": Correction(3, 0.01)}
    expected = model.generate(ids, **settings).answers
    stream = model.stream(ids, release_auxiliary=True, **settings)
    events = [next(stream) for _ in range(3)]
    assert [event.row for event in events[:2]] == [0, 1]
    assert _numel(model) == 0
    stream.close()
    assert model.generate(ids, release_auxiliary=True, **settings).answers == expected
    assert _numel(model) == 0
    model.restore_auxiliary()
    _assert_holds(model, values)


def test_the_first_token_does_not_wait_for_the_release(monkeypatch):
    model, order = predicting_model(tiny_model("llama")), []
    release = AuxiliaryStore.release
    monkeypatch.setattr(
        AuxiliaryStore, "release", lambda *a: order.append("released") or release(*a)
    )
    stream = model.stream(random_ids(1, 9), max_new_tokens=3, eos_ids=(), release_auxiliary=True)
    order.extend(event.row for event in stream)
    assert order == [0, "released", 0, 0]


@pytest.mark.parametrize("way", ["release_auxiliary", "generate", "prefill"])
def test_training_goes_on_after_a_release(way):
    model, ids = predicting_model(tiny_model("llama")), random_ids(2, 9)
    if way == "generate":
        model.generate(ids, max_new_tokens=2, release_auxiliary=True)
    else:
        model.release_auxiliary()
    if way == "prefill":
        model.prefill(ids)
    else:
        model.restore_auxiliary()
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = model.predictor.keys[0].weight.detach().clone()
    model(ids).logits.square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.predictor.keys[0].weight.detach(), before)
    # What was learned since is what comes back from disk.
    values = _values(model)
    model.release_auxiliary()
    model.restore_auxiliary()
    _assert_holds(model, values)


@pytest.mark.parametrize("use", ["forward", "fit_least_squares", "state_dict", "save_pretrained"])
def test_no_use_of_the_model_meets_released_weights(use, tmp_path):
    model, ids = predicting_model(tiny_model("llama")), random_ids(2, 9)
    expected = model(ids).logits.detach()
    values = _values(model)
    model.release_auxiliary()
    if use == "forward":
        assert torch.equal(model(ids).logits.detach(), expected)
    elif use == "fit_least_squares":
        assert model.fit_least_squares([ids]).tokens == 18
    elif use == "state_dict":
        state = model.state_dict()
        assert all(torch.equal(state[name], values[name]) for name in values)
    else:
        model.save_pretrained(tmp_path / "artefact")
        _assert_holds(model, values)


def test_values_written_behind_the_version_counter_are_written_again():
    module, store = _module(), AuxiliaryStore()
    store.release(module)
    store.restore()
    module[0].weight.data.fill_(7.0)
    store.release(module)
    store.restore()
    assert bool((module[0].weight == 7.0).all())
