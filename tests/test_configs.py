"""Configurations: packaged ones are whole, damaged ones are named before anything starts."""

from __future__ import annotations

import pytest

from lit_kvpred.cli import main
from lit_kvpred.configs import find_config, packaged_configs, require_config
from lit_kvpred.errors import ConfigurationError

_DAMAGE = {
    "empty": (b"", "it holds nothing where settings are expected"),
    "a list": (b"[]", "it holds a list where settings are expected"),
    "text": (b"hello", "it holds a str where settings are expected"),
    "not closed": (b"run: a\nmodel: [", "did not find expected node content"),
    "two colons": (b"a: b: c", "line 1: mapping values are not allowed"),
    "binary": (b"\xff\xfe\x00", "byte 0 is not UTF-8"),
    "a control character": (b"a: \x01", "control characters are not allowed"),
    "nested deeply": (b"[" * 50_000, "nesting depth"),
    "a group that is none": (b"model: 3", "model must be a group of settings, got 3"),
    "a group in a group that is none": (
        b"evaluation:\n  correction: 3",
        "evaluation.correction must be a group of settings, got 3",
    ),
    "a name alone": (b"trainer:", "it holds a str where settings are expected"),
}


@pytest.mark.parametrize("name", packaged_configs())
def test_packaged_configurations_are_usable(name):
    require_config(find_config(name))


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_configuration_is_named_with_the_remedy(damage, tmp_path):
    content, message = _DAMAGE[damage]
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        find_config(str(file))
    text = str(error.value)
    assert text.startswith(f"the configuration {file} can't be used (")
    assert message in text
    assert text.endswith("); mend it, or give another with --config")
    assert "\n" not in text


@pytest.mark.parametrize(
    "content",
    [
        b'{\n\t"seed_everything": 1,\n\t"trainer": {"max_epochs": 1}\n}',
        b"{model: {keep: 0.5}}",
        b"run: 2026-13-45",
        b"model: file.yaml\nevaluation: null",
        b"\xef\xbb\xbfrun: x\r\ntrainer:\r\n  max_epochs: 1\r\n",
    ],
)
def test_whatever_the_command_line_can_read_is_accepted(content, tmp_path):
    (tmp_path / "config.yaml").write_bytes(content)
    require_config(tmp_path / "config.yaml")


@pytest.mark.parametrize("command", ["validate", "test", "predict", "fit"])
def test_a_run_whose_configuration_is_cut(command, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(find_config("tiny").read_text()[:-8])
    before = (run / "config.yaml").read_bytes()
    assert main([command, "--run", str(run)]) == 1
    assert f"configuration {run / 'config.yaml'} can't be used" in capsys.readouterr().err
    assert (run / "config.yaml").read_bytes() == before
    assert [file.name for file in run.iterdir()] == ["config.yaml"]
