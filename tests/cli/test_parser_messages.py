"""Wrong values on the command line: one short line that names the setting and what it may be."""

from __future__ import annotations

import pytest
from jsonargparse import ArgumentError

from lit_kvpred.cli import main
from lit_kvpred.cli.parser_messages import short_message
from lit_kvpred.configs import find_config

pytestmark = pytest.mark.filterwarnings("error")

_FIT = ("fit", "--config", "tiny", "--model.base", "nowhere")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench a --period x", "--period must be int, got x"),
        ("generate a --seed x", "--seed must be int or null, got x"),
        ("generate a --slice_rows x", "--slice_rows must be int, auto or null, got x"),
        ("generate a --policy x", "--policy must be hold, commit or retract, got x"),
        (
            "quality a --exact_tails [1,x]",
            "--exact_tails must be list[int | float], int, float or null, got [1, 'x']",
        ),
        (
            "sweep a --policies [x]",
            "--policies must be list[hold | commit | retract], hold, commit, retract or null, "
            "got ['x']",
        ),
        ("generate a --corrected 7", "--corrected must be bool, got 7"),
        ("sweep", "the following arguments are required: artefact"),
        ("sweep a --bogus 3", "unrecognized arguments: --bogus 3; --help lists the options"),
    ],
)
def test_options(words, message, capsys):
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"lit-kvpred: error: {message}\n"


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("model.keep", "x", "model.keep must be int, float or list[int], got x"),
        ("model.split", "x", "model.split must be all_predicted or matched, got x"),
        ("data.sequence_length", "x", "data.sequence_length must be int, got x"),
        ("data.sourcs", "x", "--data has no setting 'sourcs'; check the name"),
        ("data", "Foo", "--data must be LightningDataModule or null, got Foo"),
        ("evaluation.prompts.init_args.limit", "x", "evaluation.prompts.limit must be int"),
        (
            "data",
            "json.Nothing",
            "--data: json.Nothing can't be used (module 'json' has no attribute",
        ),
        ("trainer.logger", "no.L", "trainer.logger: no.L can't be used (No module named 'no')"),
        (
            "trainer.callbacks",
            "[{class_path: lightning.pytorch.callbacks.EarlyStoping}]",
            "trainer.callbacks: lightning.pytorch.callbacks.EarlyStoping can't be used (module",
        ),
        ("trainer.callbacks", "3", "trainer.callbacks must be list[Callback], Callback or null"),
        ("trainer.precision", "x", "trainer.precision must be 64, 32, 16, transformer-engine,"),
        ("evaluation.correction", "3", "evaluation.correction must be a group of settings or the"),
        ("model", "3", "--model must be a group of settings or the path of a file that holds them"),
        ("model.learning_rate", "null", "model.learning_rate must be float, got null; set it"),
        ("model.foo", "1", "unrecognized arguments: --model.foo 1; --help lists the options"),
        ("trainer.max_epochs", "x", "trainer.max_epochs must be int or null, got x"),
        (
            "evaluation.correction.draft",
            "3",
            "evaluation.correction.draft must be null or class_path "
            "lit_kvpred.sirius.sparsity.CSparse (or FSparse) with init_args {keep: SHARE}, got 3",
        ),
    ],
)
def test_settings_of_a_fit(setting, value, message, capsys):
    assert main([*_FIT, f"--{setting}", value]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lit-kvpred: error: {message}")
    assert error.count("\n") == 1


def test_a_wrong_value_in_a_configuration(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    text = find_config("tiny").read_text()
    file.write_text(text.replace("sequence_length: 256", "sequence_length: abc"))
    assert main(["fit", "--config", str(file)]) == 2
    message = "data.sequence_length must be int, got abc"
    assert capsys.readouterr().err == f"lit-kvpred: error: {message}\n"


@pytest.mark.parametrize(
    ("text", "name"), [("bogus: 3", "bogus"), ("model:\n  base: a\n  keeep: .5", "keeep")]
)
def test_a_name_that_no_setting_has(text, name, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(f"{text}\n")
    assert main(["fit", "--config", "tiny", "--config", str(tmp_path / "mine.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lit-kvpred: error: there is no setting '")
    assert error.endswith(f"{name}'; check the name in the configuration\n")


def test_a_configuration_without_a_base(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("model:\n  keep: 0.5\n")
    assert main(["fit", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert (
        capsys.readouterr().err == "lit-kvpred: error: model.base must be str, got null; set it\n"
    )


def test_what_is_of_another_form_stays_whole():
    error = ArgumentError(None, 'Parser key "a":\n  something\n  new')
    assert short_message(str(error)) == 'Parser key "a": something new'


def test_a_long_value_is_cut(capsys):
    assert main(["bench", "a", "--period", "x" * 500]) == 2
    assert len(capsys.readouterr().err) < 150
