"""Feed-forward weights that wait on a slow tier: the base's own results, bit for bit."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from lit_kvpred import Correction, CSparse, FSparse, KVPredictionModel, SiriusModel, build_auxiliary
from lit_kvpred.errors import (
    BaseModelError,
    CheckpointError,
    ConfigurationError,
    UnsupportedFamilyError,
)
from lit_kvpred.model import slow_tier, streamed
from lit_kvpred.model.feed_forward import locate_feed_forwards
from lit_kvpred.model.fingerprint import fingerprint
from lit_kvpred.model.loading import load_base
from lit_kvpred.model.presence import weights_present
from lit_kvpred.model.slow_tier import HostTier
from lit_kvpred.model.streamed import (
    StreamedFeedForwards,
    stream_feed_forwards,
    streamed_of,
    streamed_weights,
)
from lit_kvpred.model.streamed_loading import load_base_unmapped, load_streamed_base
from tests.tiny_models import random_ids, tiny_model

_FAMILIES = ("llama", "qwen2", "gemma2", "gpt_neox", "gpt2", "phi3", "opt", "phi", "cohere2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model("llama", weight_scale=8.0).save_pretrained(path)
    return path


@torch.no_grad()
def _logits(base, ids=None):
    return base(random_ids(2, 7) if ids is None else ids).logits


def _streamed(base) -> StreamedFeedForwards:
    found = streamed_of(base)
    assert found is not None
    return found


def _loading_threads() -> set[threading.Thread]:
    """Those alive; bases of earlier tests may still be on their way out."""
    return {t for t in threading.enumerate() if t.name.startswith("lit-kvpred-weights")}


# -- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_base_read_from_its_files_computes_the_same_bits(family, tmp_path):
    tiny_model(family).save_pretrained(tmp_path)
    whole, base = load_base(tmp_path), load_streamed_base(tmp_path)
    assert torch.equal(_logits(base), _logits(whole))
    assert not base.training
    assert base.config.name_or_path == str(tmp_path)
    assert base.generation_config.to_dict() == whole.generation_config.to_dict()


def test_shards(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    base = load_streamed_base(tmp_path)
    assert torch.equal(_logits(base), _logits(load_base(tmp_path)))


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3"])
@pytest.mark.parametrize(
    ("stored", "dtype"),
    [(torch.bfloat16, "float32"), (torch.bfloat16, "auto"), (torch.float32, "bfloat16")],
)
def test_weights_are_converted_as_they_are_when_loaded_whole(family, stored, dtype, tmp_path):
    tiny_model(family, dtype=stored).save_pretrained(tmp_path)
    whole, base = load_base(tmp_path, dtype=dtype), load_streamed_base(tmp_path, dtype=dtype)
    assert base.dtype == whole.dtype
    assert torch.equal(_logits(base), _logits(whole))


def test_a_loaded_base_without_its_files_mapped_is_the_base(folder):
    whole, base = load_base(folder), load_base_unmapped(folder)
    assert streamed_of(base) is None
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), base.parameters(), strict=True)
    )
    assert torch.equal(_logits(base), _logits(whole))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_base_in_memory_gives_its_weights_up_and_gets_them_back(family):
    base = tiny_model(family)
    expected = _logits(base)
    before = {n: (p, p.detach().clone(), p.requires_grad) for n, p in base.named_parameters()}
    with stream_feed_forwards(base) as moved:
        weights = [w for layer in streamed_weights(moved.parts) for w in layer]
        assert all(w.untyped_storage().nbytes() == 4 for w in weights)
        assert all(w.isnan().all() for w in weights)
        assert torch.equal(_logits(base), expected)
        assert all(w.isnan().all() for w in weights)
    for name, parameter in base.named_parameters():
        held, value, trainable = before[name]
        assert parameter is held
        assert torch.equal(parameter, value)
        assert parameter.requires_grad == trainable
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in base.modules())
    assert streamed_of(base) is None
    read = moved.bytes_read
    assert torch.equal(_logits(base), expected)
    assert moved.bytes_read == read
    base.state_dict()
    moved.restore()


@pytest.mark.parametrize("tier", ["file", "host"])
def test_every_tier_holds_nan_and_infinity(tier):
    base = tiny_model("llama")
    weight = base.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        weight[0, 0], weight[1, 1] = torch.nan, torch.inf
    bits = weight.detach().clone().view(torch.int32)
    if tier == "file":
        moved = stream_feed_forwards(base)
    else:
        held = [[w.detach() for w in ws] for ws in streamed_weights(locate_feed_forwards(base))]
        moved = StreamedFeedForwards(base, HostTier(held))
    with weights_present(base.model.layers[1].mlp.up_proj):
        assert torch.equal(weight.detach().view(torch.int32), bits)
    moved.restore()
    assert torch.equal(weight.detach().view(torch.int32), bits)


@given(
    layers=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    width=st.integers(1, 70),
)
def test_any_shape_in_any_order_of_forwards(layers, lengths, width):
    base = tiny_model("llama", num_hidden_layers=layers, intermediate_size=width)
    inputs = [random_ids(1, length) for length in lengths]
    expected = [_logits(base, ids) for ids in inputs]
    with stream_feed_forwards(base):
        for ids, logits in zip(inputs, expected, strict=True):
            assert torch.equal(_logits(base, ids), logits)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("draft", [CSparse(0.5), FSparse(0.5), None])
def test_sirius_writes_the_same_tokens(folder, draft, static):
    ids = random_ids(2, 9)
    correction = Correction(period=4, threshold=0.05, draft=draft)
    outputs = [
        SiriusModel.from_pretrained(folder, offload=offload).generate(
            ids, correction=correction, max_new_tokens=14, eos_ids=(), static_cache=static
        )
        for offload in (False, True)
    ]
    assert outputs[0].answers == outputs[1].answers
    assert outputs[0].stats.advances == outputs[1].stats.advances


@pytest.mark.parametrize("family", ["gpt2", "opt", "phi3"])
def test_drafts_of_other_families(family, tmp_path):
    tiny_model(family, weight_scale=8.0).save_pretrained(tmp_path)
    correction = Correction(period=4, threshold=0.05, draft=CSparse(0.5))
    answers = [
        SiriusModel.from_pretrained(tmp_path, offload=offload)
        .generate(random_ids(1, 9), correction=correction, max_new_tokens=12, eos_ids=())
        .answers
        for offload in (False, True)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "correction",
    [None, Correction(3, 0.05), Correction(3, 0.05, slice_rows=2, draft=CSparse(0.5))],
)
def test_a_predicted_prompt_by_a_prefix_that_is_streamed_too(folder, correction, tmp_path):
    models = []
    for base in (load_base(folder), load_streamed_base(folder)):
        model = KVPredictionModel(base, build_auxiliary(base, "prefix", keep=2)).eval()
        model.fit_least_squares([random_ids(4, 32)])
        models.append(model)
    settings = {"max_new_tokens": 12, "eos_ids": (), "correction": correction}
    expected = models[0].generate(random_ids(1, 9), **settings).answers
    assert models[1].generate(random_ids(1, 9), **settings).answers == expected
    models[0].save_pretrained(tmp_path / "artefact")
    loaded = KVPredictionModel.from_pretrained(tmp_path / "artefact", load_streamed_base(folder))
    assert loaded.generate(random_ids(1, 9), **settings).answers == expected


def test_the_fingerprint_is_that_of_the_whole_base(folder):
    base = load_streamed_base(folder)
    assert fingerprint(base) == fingerprint(load_base(folder))
    assert _streamed(base).bytes_outside == _streamed(base).bytes_read > 0


# -- bytes ---------------------------------------------------------------------------------------


def test_each_forward_reads_the_stored_weights_once(tmp_path):
    tiny_model("llama", dtype=torch.bfloat16).save_pretrained(tmp_path)
    base = load_streamed_base(tmp_path, dtype="float32")
    moved = _streamed(base)
    assert moved.bytes_read == 0
    assert moved.n_bytes == 4 * 3 * 32 * 64 * 2
    for count in (1, 2, 3):
        _logits(base, random_ids(1, count))
        assert moved.bytes_read == count * moved.n_bytes
    assert moved.bytes_outside == 0


def test_a_period_reads_them_once_and_gathering_once(folder):
    model = SiriusModel.from_pretrained(folder, offload=True)
    moved = model.streamed
    ids, whole = random_ids(1, 9), moved.n_bytes
    _logits(model.base)  # Both buffers now hold the last layers.
    correction = Correction(period=4, threshold=0.0, draft=CSparse(0.5))
    stream = model.stream(ids, correction=correction, max_new_tokens=9, eos_ids=())
    # The probe of the feed-forward parts left the first layers in the buffers.
    _logits(model.base)
    start, outside = moved.bytes_read, moved.bytes_outside
    next(stream)
    assert moved.bytes_read - start == whole
    assert moved.bytes_outside == outside
    output = None
    while output is None:
        try:
            next(stream)
        except StopIteration as end:
            output = end.value
    assert len(output.stats.check_s) == 2
    assert moved.bytes_outside - outside == whole
    assert moved.bytes_read - start == (1 + 1 + 2) * whole


def test_gathering_holds_no_more_than_one_layer(folder, monkeypatch):
    model = SiriusModel.from_pretrained(folder, offload=True)
    moved, present = model.streamed, []
    bring = StreamedFeedForwards._bring

    def watched(self, layer):
        bring(self, layer)
        weights = streamed_weights(self.parts)
        present.append([i for i, ws in enumerate(weights) if not ws[0].isnan().any()])
        assert present[-1] == [layer]

    monkeypatch.setattr(StreamedFeedForwards, "_bring", watched)
    correction = Correction(period=4, threshold=0.0, draft=CSparse(0.5))
    model.generate(random_ids(1, 9), correction=correction, max_new_tokens=6, eos_ids=())
    assert [0] in present
    assert [3] in present
    assert len(moved._buffers) == 2


def test_the_next_layer_is_read_while_one_computes(folder):
    base = load_streamed_base(folder)
    moved, asked = _streamed(base), []
    read, bring = moved._tier.read, moved._bring
    moved._tier.read = lambda layer, into: (asked.append(("read", layer)), read(layer, into))
    moved._bring = lambda layer: (bring(layer), moved._wait(), asked.append(("use", layer)))
    start = moved._start

    def settled(layer):
        start(layer)
        if moved._load is not None:
            moved._load.done.result()

    moved._start = settled
    _logits(base)
    assert asked == [
        ("read", 0), ("use", 0), ("read", 1), ("use", 1), ("read", 2), ("use", 2), ("read", 3),
        ("use", 3),
    ]  # fmt: skip


# -- failures ------------------------------------------------------------------------------------


def _single_file(folder: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target / "model.safetensors"


@pytest.mark.parametrize("change", ["cut off", "written to"])
def test_a_file_that_changes_is_one_clear_error(folder, tmp_path, change):
    file = _single_file(folder, tmp_path)
    base = load_streamed_base(tmp_path)
    expected, content = _logits(base), file.read_bytes()
    with file.open("r+b") as opened:
        if change == "cut off":
            # The data begin with the head and end with the last layers' weights or norms.
            opened.truncate(len(content) // 2)
        else:
            opened.write(content)
    with pytest.raises(CheckpointError, match="can't be read from .*model.safetensors") as error:
        _logits(base)
    assert "\n" not in str(error.value)
    assert all(w.isnan().all() for ws in streamed_weights(_streamed(base).parts) for w in ws)
    with pytest.raises(CheckpointError):
        _streamed(base).restore()
    assert streamed_of(base) is not None
    assert torch.isfinite(expected).all()


def test_a_failing_read_ends_the_forward_and_a_later_one_succeeds(folder, monkeypatch):
    base = load_streamed_base(folder)
    expected = _logits(base)
    read = slow_tier.FileTier.read

    def failing(self, layer, targets):
        if layer == 2:
            targets[0].zero_()
            raise CheckpointError("the disk is gone")
        read(self, layer, targets)

    with monkeypatch.context() as patch:
        patch.setattr(slow_tier.FileTier, "read", failing)
        with pytest.raises(CheckpointError, match="the disk is gone"):
            _logits(base)
    assert torch.equal(_logits(base), expected)


def test_a_truncated_or_incomplete_folder_is_refused_at_loading(folder, tmp_path):
    file = _single_file(folder, tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[:-10])
    with pytest.raises(BaseModelError, match="truncated or no plain safetensors file"):
        load_streamed_base(tmp_path)
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(BaseModelError, match="its header is cut off"):
        load_streamed_base(tmp_path)
    file.unlink()
    with pytest.raises(BaseModelError, match="neither model.safetensors nor"):
        load_streamed_base(tmp_path)


def test_a_missing_weight_is_refused(folder, tmp_path):
    from safetensors.torch import save_file

    file = _single_file(folder, tmp_path)
    with safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(BaseModelError, match="1 weights are missing"):
        load_streamed_base(tmp_path)


def test_weights_that_the_files_keep_in_another_form_are_refused(folder, monkeypatch):
    from transformers import LlamaForCausalLM

    original = LlamaForCausalLM.from_pretrained

    def converting(*args, **kwargs):
        model, info = original(*args, **kwargs)
        linear = model.model.layers[0].mlp.up_proj
        linear.weight = torch.nn.Parameter(linear.weight.detach().clone())
        return model, info

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", converting)
    with pytest.raises(UnsupportedFamilyError, match="in another form than the model does"):
        load_streamed_base(folder)


def test_families_and_sources_that_cannot_be_streamed(tmp_path):
    tiny_model("gpt_oss").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedFamilyError, match="'gpt_oss' has no feed-forward part"):
        load_streamed_base(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BaseModelError, match="GGUF weights are dequantised"):
        load_streamed_base(tmp_path / "model.gguf")


def test_layers_that_share_weights_are_refused():
    base = tiny_model("llama")
    base.model.layers[1].mlp.up_proj.weight = base.model.layers[0].mlp.up_proj.weight
    with pytest.raises(UnsupportedFamilyError, match="share their feed-forward weights"):
        stream_feed_forwards(base)
    assert torch.isfinite(_logits(base)).all()


def test_what_would_need_all_weights_is_refused():
    base = tiny_model("llama")
    moved = stream_feed_forwards(base)
    with pytest.raises(ConfigurationError, match="streamed already"):
        StreamedFeedForwards(base, moved._tier)
    with pytest.raises(ConfigurationError, match="can't be trained through"):
        base(random_ids(1, 4))
    with pytest.raises(ConfigurationError, match="can't be saved or copied"):
        base.state_dict()
    with pytest.raises(ConfigurationError, match="can't be saved or copied"):
        base.model.state_dict()
    with pytest.raises(ConfigurationError, match="can't be copied"):
        copy.deepcopy(base)
    with pytest.raises(ConfigurationError, match="can't be saved or copied"):
        build_auxiliary(base, "pruned", keep=[0, 2])
    with pytest.raises(ConfigurationError, match="can't be saved or copied"):
        torch.save(base, io.BytesIO())
    with pytest.raises(ConfigurationError, match="can't be given other weights"):
        base.load_state_dict(tiny_model("llama").state_dict())
    assert torch.isfinite(_logits(base)).all()
    with pytest.raises(ConfigurationError, match=r"cast from torch.float32 .* to torch.float16"):
        _logits(base.to(torch.float16))


def test_a_full_disk_leaves_the_weights_in_memory(monkeypatch):
    base = tiny_model("llama")
    expected = _logits(base)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(streamed, "save_file", full)
    with pytest.raises(CheckpointError, match="can't off-load the feed-forward weights"):
        stream_feed_forwards(base)
    assert torch.equal(_logits(base), expected)


def test_the_thread_the_file_and_the_base_go_together():
    before = _loading_threads()
    base = tiny_model("llama")
    moved = stream_feed_forwards(base)
    _logits(base)
    (thread,) = _loading_threads() - before
    file, gone = moved._tier.layers[0][0].file, weakref.ref(base)
    assert file.exists()
    del base, moved
    gc.collect()
    thread.join(timeout=5)
    assert gone() is None
    assert not thread.is_alive()
    assert not file.exists()


def test_restoring_ends_the_thread():
    before = _loading_threads()
    base = tiny_model("llama")
    with pytest.raises(IndexError), stream_feed_forwards(base):
        _logits(base, torch.tensor([[10**6]]))
    assert _loading_threads() <= before
    assert torch.isfinite(_logits(base)).all()


def test_inference_mode_anywhere():
    base = tiny_model("llama")
    expected = _logits(base)
    with torch.inference_mode():
        moved = stream_feed_forwards(base)
        assert torch.equal(base(random_ids(2, 7)).logits, expected)
    assert torch.equal(_logits(base), expected)
    with torch.inference_mode():
        moved.restore()
    base(random_ids(1, 4)).logits.sum().backward()
