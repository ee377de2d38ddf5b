from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers.utils import logging as hf_logging

from lit_kvpred.errors import BaseModelError, ConfigurationError, UnsupportedFamilyError
from lit_kvpred.model.loading import load_base, load_tokenizer, locate, read_gguf_summary
from tests.base_folders import byte_tokenizer, make_base
from tests.prepare.gguf_files import tiny_llama, write_gguf
from tests.tiny_models import tiny_model

_IDS = torch.arange(40).view(2, 20)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return Path(make_base(tmp_path_factory.mktemp("saved") / "base"))


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy of a good model folder, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "base"))


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama())


def _set_config(folder: Path, **values) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def _message(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def _logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(_IDS).logits


def test_folder_gives_the_saved_model_in_eval_mode(saved):
    loaded = load_base(saved)
    assert not loaded.training
    assert loaded.dtype == torch.float32
    expected = tiny_model(
        "llama", vocab_size=258, bos_token_id=256, eos_token_id=256, pad_token_id=257
    )
    assert torch.equal(_logits(loaded), _logits(expected))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_dtype_auto_keeps_the_files_type_and_a_name_overrides_it(tmp_path, stored):
    tiny_model("llama").to(stored).save_pretrained(tmp_path)
    assert load_base(tmp_path).dtype == stored
    assert load_base(str(tmp_path), dtype="float16").dtype == torch.float16
    assert load_base(tmp_path, dtype=torch.float32).dtype == torch.float32


def test_unknown_dtype_is_refused(folder):
    with pytest.raises(ConfigurationError, match="unknown dtype 'int8'; use auto, float32") as e:
        load_base(folder, dtype="int8")
    _message(e)


def test_tokenizer_of_a_folder(saved):
    text = "def f(x):\n\treturn 'é'"
    assert load_tokenizer(saved)(text)["input_ids"] == byte_tokenizer()(text)["input_ids"]


def test_gguf_gives_the_written_model_dense_and_saveable(gguf_file, tmp_path):
    loaded = load_base(gguf_file)
    assert not loaded.training
    assert loaded.dtype == torch.float32
    assert torch.equal(_logits(loaded), _logits(tiny_llama()))
    assert not loaded.is_quantized
    assert not hasattr(loaded.config, "quantization_config")
    loaded.save_pretrained(tmp_path)
    assert torch.equal(_logits(load_base(tmp_path)), _logits(loaded))


def test_gguf_in_another_dtype(gguf_file):
    loaded = load_base(gguf_file, dtype="bfloat16")
    expected = tiny_llama().model.embed_tokens.weight.to(torch.bfloat16)
    assert torch.equal(loaded.model.embed_tokens.weight, expected)


def test_gguf_tokenizer_knows_its_merge_and_its_special_tokens(gguf_file):
    tokenizer = load_tokenizer(gguf_file)
    alphabet = byte_tokenizer()
    assert tokenizer("the")["input_ids"] == [258, *alphabet("e")["input_ids"]]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257)


def test_gguf_summary(gguf_file):
    summary = read_gguf_summary(gguf_file)
    assert summary.architecture == "llama"
    assert summary.parameters == sum(p.numel() for p in tiny_llama().parameters())


def test_gguf_of_an_architecture_without_a_map_is_refused_by_name(tmp_path):
    file = write_gguf(tmp_path / "other.gguf", tiny_llama(), architecture="rwkv7")
    with pytest.raises(UnsupportedFamilyError, match="GGUF files of architecture 'rwkv7'") as e:
        load_base(file)
    assert "safetensors" in _message(e)


def test_gguf_with_the_tensors_of_another_architecture_is_refused(tmp_path):
    file = write_gguf(tmp_path / "other.gguf", tiny_llama(), architecture="phi3")
    with pytest.raises(BaseModelError, match=r"weights are missing .* first model\.layers\.0") as e:
        load_base(file)
    _message(e)


@pytest.mark.parametrize("load", [load_base, load_tokenizer])
def test_gguf_without_a_whole_header_is_refused(gguf_file, tmp_path, load):
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf_file.read_bytes()[:200])
    with pytest.raises(BaseModelError, match=r"cut\.gguf") as e:
        load(file)
    _message(e)


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_file_that_only_claims_to_be_gguf_is_refused(tmp_path, content):
    file = tmp_path / "false.gguf"
    file.write_bytes(content)
    with pytest.raises(BaseModelError, match="truncated or not a GGUF file") as e:
        load_base(file)
    _message(e)


def test_gguf_cut_in_its_weights_is_refused(gguf_file, tmp_path):
    file = tmp_path / "cut.gguf"
    data = gguf_file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(BaseModelError, match="truncated or not a GGUF file") as e:
        load_base(file)
    _message(e)


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(BaseModelError, match=r"neither a model folder nor a \.gguf file"):
        load_base(file)


@pytest.mark.parametrize("load", [load_base, load_tokenizer, locate])
@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "a/b/c", "missing.gguf", "a b"])
def test_path_that_does_not_exist_is_not_looked_up(load, name, monkeypatch):
    monkeypatch.setattr(
        "lit_kvpred.model.loading.snapshot_download", lambda *_, **__: pytest.fail("looked up")
    )
    with pytest.raises(BaseModelError, match=f"{name}: no such folder or file") as e:
        load(name)
    _message(e)


@pytest.mark.parametrize("load", [load_base, load_tokenizer])
def test_hub_id_without_network_says_what_to_check(load):
    with pytest.raises(BaseModelError, match="check the name and the network") as e:
        load("some-owner/some-model")
    assert _message(e).startswith("some-owner/some-model: ")


def test_hub_id_is_fetched_at_its_revision_and_then_read_as_a_folder(saved, monkeypatch):
    asked = {}

    def download(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(saved)

    monkeypatch.setattr("lit_kvpred.model.loading.snapshot_download", download)
    loaded = load_base("owner/name", revision="v1")
    assert (asked["repo_id"], asked["revision"]) == ("owner/name", "v1")
    assert "*.safetensors" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]
    assert torch.equal(_logits(loaded), _logits(load_base(saved)))
    load_tokenizer("owner/name")
    assert "*.safetensors" not in asked["allow_patterns"]


def test_hub_refusal_names_the_hubs_reason(monkeypatch):
    def download(*_, **__):
        raise LocalEntryNotFoundError("nothing\ncached") from OSError("no route to host")

    monkeypatch.setattr("lit_kvpred.model.loading.snapshot_download", download)
    with pytest.raises(BaseModelError, match=r"\(no route to host\)") as e:
        load_base("owner/name")
    _message(e)


@pytest.mark.parametrize("load", [load_base, load_tokenizer])
def test_revision_of_a_local_path_is_refused(saved, load):
    with pytest.raises(ConfigurationError, match="has no revision 'main'") as e:
        load(saved, revision="main")
    _message(e)


def test_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(BaseModelError, match=r"no config\.json in this folder") as e:
        load_base(folder)
    _message(e)


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_config_that_is_no_configuration_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(BaseModelError, match="is not a model configuration") as e:
        load_base(folder)
    _message(e)


def test_config_with_a_value_of_the_wrong_type_is_refused(folder):
    _set_config(folder, num_hidden_layers="four")
    with pytest.raises(BaseModelError, match="is not usable: .*num_hidden_layers") as e:
        load_base(folder)
    _message(e)


@pytest.mark.parametrize("kept", [0, 7, 100, 50_000])
def test_truncated_safetensors_are_refused(folder, kept):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(BaseModelError, match="weights cannot be read") as e:
        load_base(folder)
    assert "fetch or prepare the model again" in _message(e)


def test_pickled_weights_are_not_read(folder):
    torch.save(tiny_model("llama", vocab_size=258).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BaseModelError, match="complete safetensors files are needed") as e:
        load_base(folder)
    _message(e)


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"num_hidden_layers": 5}, "model.layers.4.input_layernorm.weight"),
        ({"vocab_size": 300}, "lm_head.weight"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_not_made_up(folder, change, first):
    _set_config(folder, **change)
    with pytest.raises(BaseModelError, match=f"configuration says, first {first}") as e:
        load_base(folder)
    _message(e)


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("bert", "BertForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("vit", "ViTForImageClassification"),
        ("llama", "LlamaModel"),
        ("llama", "LlamaForSequenceClassification"),
    ],
)
def test_models_that_do_not_continue_text_are_refused_by_name(folder, family, architecture):
    _set_config(folder, model_type=family, architectures=[architecture])
    with pytest.raises(UnsupportedFamilyError, match=f"{architecture} is not a causal") as e:
        load_base(folder)
    _message(e)


def test_family_that_transformers_does_not_know_is_refused_by_name(folder):
    _set_config(folder, model_type="hyena9", architectures=["HyenaForCausalLM"])
    with pytest.raises(UnsupportedFamilyError, match=r"HyenaForCausalLM \(model_type 'hyena9'\)"):
        load_base(folder)


def test_code_of_a_model_folder_is_never_run(folder):
    ran = folder / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    _set_config(
        folder,
        model_type="hyena9",
        auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    )
    with pytest.raises(BaseModelError, match="needs code from the model's own repository") as e:
        load_base(folder)
    assert "LlamaForCausalLM" in _message(e)
    assert not ran.exists()


def test_folder_without_tokenizer_is_refused(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(BaseModelError, match="no usable tokenizer") as e:
        load_tokenizer(folder)
    _message(e)


def test_transformers_speaks_again_after_loading(folder):
    hf_logging.set_verbosity_info()
    try:
        load_base(folder)
        (folder / "model.safetensors").write_bytes(b"")
        with pytest.raises(BaseModelError):
            load_base(folder)
        assert hf_logging.get_verbosity() == hf_logging.INFO
        assert hf_logging.is_progress_bar_enabled()
    finally:
        hf_logging.set_verbosity_warning()
