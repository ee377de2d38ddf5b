"""Each mistake gets one line that names cause and remedy, and a non-zero exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lit_kvpred.errors import ConfigurationError
from tests.base_folders import make_base
from tests.integration.conftest import error_line


@pytest.fixture(scope="module")
def trained(lit_kvpred, fit_words, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    result = lit_kvpred(*fit_words(run, "--trainer.max_epochs=1"))
    assert result.returncode == 0, result.stderr
    return run


def test_unknown_key_on_the_command_line(lit_kvpred_process, fit_words, tmp_path):
    result = lit_kvpred_process(*fit_words(tmp_path / "run", "--model.kept=0.5"))
    assert result.returncode == 2
    assert "model.kept" in error_line(result)


def test_unknown_key_in_a_file(lit_kvpred, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  base: x\n  lerning_rate: 0.1\n")
    result = lit_kvpred("fit", "--config", str(file))
    assert result.returncode == 2
    assert "lerning_rate" in error_line(result)


def test_wrong_type(lit_kvpred, fit_words, tmp_path):
    result = lit_kvpred(*fit_words(tmp_path / "run", "--model.learning_rate=fast"))
    assert result.returncode == 2
    assert "learning_rate" in error_line(result)


def test_unknown_configuration(lit_kvpred):
    result = lit_kvpred("fit", "--config", "huge")
    assert result.returncode == 1
    assert "no configuration 'huge'" in error_line(result)


def test_missing_data(lit_kvpred, fit_words, tmp_path):
    result = lit_kvpred(*fit_words(tmp_path / "run", "--data.sources=[/nowhere/text.jsonl]"))
    assert result.returncode == 1
    assert "/nowhere/text.jsonl" in error_line(result)


def test_empty_data(lit_kvpred, fit_words, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "nothing.txt").write_text("")
    result = lit_kvpred(*fit_words(tmp_path / "run", f"--data.sources=[{empty}]"))
    assert result.returncode == 1
    assert str(empty) in error_line(result)


def test_missing_base(lit_kvpred, fit_words, tmp_path):
    result = lit_kvpred(*fit_words(tmp_path / "run", "--model.base=/nowhere/base"))
    assert result.returncode == 1
    assert "/nowhere/base" in error_line(result)


def test_tokenizer_of_another_family(lit_kvpred, fit_words, tmp_path, base_folder):
    other = tmp_path / "other"
    shutil.copytree(base_folder, other)
    description = json.loads((other / "tokenizer.json").read_text())
    vocabulary = description["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(description))
    result = lit_kvpred(
        *fit_words(tmp_path / "run", "--model.auxiliary=canonical",
                   f"--model.auxiliary_source={other}")
    )  # fmt: skip
    assert result.returncode == 1
    assert "'a'" in error_line(result)


def test_checkpoint_of_another_base(lit_kvpred, fit_words, tmp_path, trained):
    other = make_base(tmp_path / "other", seed=1, max_position_embeddings=512)
    last = trained / "checkpoints" / "last.ckpt"
    result = lit_kvpred(
        *fit_words(tmp_path / "run", f"--model.base={other}", f"--ckpt_path={last}")
    )
    assert result.returncode == 1
    assert "was trained for base" in error_line(result)


def test_truncated_checkpoint(lit_kvpred, fit_words, tmp_path, trained):
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes((trained / "checkpoints" / "last.ckpt").read_bytes()[:5000])
    result = lit_kvpred(*fit_words(tmp_path / "run", f"--ckpt_path={damaged}"))
    assert result.returncode == 1
    assert f"{damaged} is truncated or not a checkpoint" in error_line(result)


def test_nan_loss_stops_and_keeps_the_last_good_checkpoint(lit_kvpred, fit_words, tmp_path):
    run = tmp_path / "run"
    result = lit_kvpred(
        *fit_words(run, "--model.learning_rate=1e30", "--trainer.gradient_clip_val=null",
                   "--model.warmup_steps=0")
    )  # fmt: skip
    assert result.returncode == 1
    line = error_line(result)
    assert "is not finite at step" in line
    assert str(run / "checkpoints" / "last.ckpt") in line
    assert (run / "checkpoints" / "last.ckpt").is_file()


def test_unwritable_run_folder(lit_kvpred, fit_words, tmp_path):
    (tmp_path / "file").write_text("")
    result = lit_kvpred(*fit_words(tmp_path / "file" / "run"))
    assert result.returncode == 1
    assert "can't be written" in error_line(result)


def test_prompt_longer_than_the_positions(lit_kvpred, trained):
    result = lit_kvpred("generate", str(trained / "artefact"), "--prompt", "x" * 600)
    assert result.returncode == 1
    assert "the base has 512" in error_line(result)


def test_empty_prompt(lit_kvpred, trained):
    result = lit_kvpred("generate", str(trained / "artefact"), stdin="")
    assert result.returncode == 1
    assert "the prompt is empty" in error_line(result)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate", "--run=nowhere"], "nowhere holds no run (no config.yaml)"),
        (["validate"], "give --config with a file or a packaged name, or --run"),
        (["fit"], "give --config with a file or a packaged name, or --run"),
    ],
)
def test_no_configuration(lit_kvpred, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = lit_kvpred(*words)
    assert result.returncode == 1
    assert message in error_line(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.learning_rate=-1"], "learning_rate must be a number of at least 0"),
        (["--model.auxiliary=prefix", "--model.keep=4"], "nothing to train; keep fewer"),
        (["--model.auxiliary=prefix", "--model.keep=9"], "keep 9 is no prefix of 4 layers"),
        (["--model.auxiliary=pruned", "--model.keep=2"], "which only a prefix takes"),
        (["--model.exact_tail=0"], "exact_tail must be a whole number of at least 1"),
    ],
)
def test_settings_without_sense(lit_kvpred, fit_words, tmp_path, words, message):
    result = lit_kvpred(*fit_words(tmp_path / "run", *words))
    assert result.returncode == 1
    assert message in error_line(result)


def test_a_setting_without_sense_leaves_no_folder(lit_kvpred, fit_words, tmp_path):
    result = lit_kvpred(*fit_words(tmp_path / "run", "--model.rank=0"))
    assert "model.rank must be a whole number of at least 1" in error_line(result)
    assert not (tmp_path / "run").exists()


def test_two_prompts_or_no_chat_template(lit_kvpred, trained):
    artefact = str(trained / "artefact")
    result = lit_kvpred("generate", artefact, "--prompt=x", "--prompt_file=nofile")
    assert result.returncode == 1
    assert "--prompt and --prompt_file exclude each other; leave one out" in error_line(result)
    result = lit_kvpred("generate", artefact, "--prompt=x", "--chat=true")
    assert result.returncode == 1
    assert "no chat template" in error_line(result)


def test_an_interrupt_is_no_traceback(lit_kvpred, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_kvpred.cli.report.report", interrupted)
    monkeypatch.setattr("lit_kvpred.cli.report.call_with_arguments", interrupted)
    result = lit_kvpred("report", "somewhere")
    assert result.returncode == 130
    assert "interrupted" in error_line(result)


def test_missing_artefact(lit_kvpred, tmp_path):
    result = lit_kvpred("generate", str(tmp_path), "--prompt", "x")
    assert result.returncode == 1
    assert "holds no artefact" in error_line(result)


def test_unknown_command_and_no_command(lit_kvpred):
    result = lit_kvpred("frobnicate")
    assert result.returncode == 2
    assert "unknown command" in error_line(result)
    assert lit_kvpred().returncode == 2


def test_debug_shows_the_traceback(lit_kvpred):
    with pytest.raises(ConfigurationError, match="no configuration 'huge'"):
        lit_kvpred("--debug", "fit", "--config", "huge")
