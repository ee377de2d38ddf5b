"""Reading and extending run folders."""

import json
import math

import numpy as np
import pytest

from lit_kvpred.errors import CheckpointError, ConfigurationError
from lit_kvpred.report.records import append_evaluation, finite, read_run, write_run_facts


def steps(folder):
    text = (folder / "evaluation.jsonl").read_text(encoding="utf-8")
    return [(r["stage"], r["global_step"]) for r in map(json.loads, text.splitlines())]


def test_reads_everything_of_a_complete_run(run_folder):
    run = read_run(run_folder)
    assert run.name == "prefix15"
    assert run.fact("base", "source") == "HuggingFaceTB/SmolLM2-135M"
    assert run.fact("base", "no such key") is None
    assert run.fact("no such part", "source") is None
    assert [line.global_step for line in run.fit] == [0, 50, 100, 150, 200, 250, 300]
    last = run.latest("fit")
    assert last.text.agreement_first8 < last.text.agreement
    assert len(last.text.consistency_keys) == 30
    assert [row.prompt_tokens for row in last.timing] == [128, 256, 512, 1024]
    assert last.timing[0].base.median == pytest.approx(0.0006 * 128 + 0.02)
    assert last.accuracy[0].scores["corrected"] == pytest.approx(0.515625)
    assert last.correction.settings["policy"] == "hold"
    assert last.samples[2].completions["base"] == " 3 * 12 = 36. #### 36"
    assert run.latest("test") is None
    assert run.curves["val/loss"][-1][0] == 300
    assert "kind: prefix" in run.config


def test_absent_and_ill_typed_parts_become_absent(tmp_path):
    line = {
        "stage": "fit",
        "global_step": 4,
        "tokens_seen": None,
        "text": {"kl": "much", "agreement": 0.5, "consistency_keys": None},
        "timing": [{"prompt_tokens": 8, "base": None, "flops": None}, {"base": {}}, "fast"],
        "accuracy": {"t": {"n": True, "base": 0.5, "predicted": None}, "u": None},
        "correction": None,
        "samples": [{"base": 3, "predicted": "x"}],
    }
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(line) + "\n\n")
    (evaluation,) = read_run(tmp_path).fit
    assert math.isnan(evaluation.tokens_seen)
    assert math.isnan(evaluation.text.kl)
    assert evaluation.text.agreement == 0.5
    assert evaluation.text.consistency_keys == ()
    (timing,) = evaluation.timing
    assert timing.base is None
    assert math.isnan(timing.flops_ratio)
    assert evaluation.accuracy[0].scores == {"base": 0.5}
    assert math.isnan(evaluation.accuracy[0].n)
    assert evaluation.accuracy[1].scores == {}
    assert evaluation.correction is None
    assert evaluation.samples[0].completions == {"predicted": "x"}


def test_nan_in_an_evaluation_is_read(tmp_path):
    text = '{"stage": "fit", "global_step": 1, "text": {"kl": NaN, "agreement": 0.25}}\n'
    (tmp_path / "evaluation.jsonl").write_text(text)
    (line,) = read_run(tmp_path).fit
    assert math.isnan(line.text.kl)
    assert line.text.agreement == 0.25


def test_line_separators_of_unicode_inside_a_string_end_no_line(tmp_path):
    text = '{"stage": "fit", "global_step": 1, "samples": [{"base": "a\u2028b\x85c"}]}\n'
    (tmp_path / "evaluation.jsonl").write_text(text, encoding="utf-8")
    (line,) = read_run(tmp_path).fit
    assert line.samples[0].completions["base"] == "a\u2028b\x85c"


@pytest.mark.parametrize("name", ["here", "empty"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigurationError, match=f"{name} is not a run folder: .*lit-kvpred fit"):
        read_run(tmp_path / name)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('{"stage": "fit", "global_st', r"evaluation\.jsonl, line 2: .*column .*delete this line"),
        ('{"stage": "fit"}', r"evaluation\.jsonl, line 2: not an evaluation"),
        ('{"stage": "warm-up", "global_step": 1}', r"line 2: .*fit, validate, test"),
        ("[]", r"line 2: not an evaluation"),
        ("[" * 100_000, r"evaluation\.jsonl, line 2: .*nested too deeply"),
        ('{"stage": "fit", "global_step": ' + "1" * 5000 + "}", r"line 2: .*too many digits"),
    ],
)
def test_a_broken_evaluation_names_file_line_and_remedy(tmp_path, broken, message):
    good = '{"stage": "fit", "global_step": 1}'
    (tmp_path / "evaluation.jsonl").write_text(f"{good}\n{broken}\n{good}\n")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", b'{\n"base": {\n', r"run\.json, line 3: .*restore the file"),
        ("run.json", b"[" * 100_000, r"run\.json, line 1: .*nested too deeply"),
        ("run.json", b"[1]", r"run\.json does not hold a JSON object"),
        ("run.json", b'{"a": "\xff"}', r"run\.json is damaged: byte 7 is not UTF-8"),
        ("metrics.csv", b"step,val/kl\n1,\xfe\n", r"metrics\.csv is damaged: byte 14"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_run(tmp_path)


def test_curves_skip_blank_and_non_finite_cells(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "epoch,step,train/loss,val/loss\n0,1,2.5,\n0,2,nan,\n0,3,oops,1.5\n0,,9,9\n0,4,2.0\n"
    )
    assert read_run(tmp_path).curves == {
        "train/loss": ((1, 2.5), (4, 2.0)),
        "val/loss": ((3, 1.5),),
    }


def test_what_a_resumed_run_logs_again_replaces_what_it_logged_before(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "step,train/loss,val/loss\n1,5.0,\n2,4.0,\n2,,3.0\n3,9.0,\n4,9.0,\n3,3.5,\n"
    )
    curves = read_run(tmp_path).curves
    assert curves["train/loss"] == ((1, 5.0), (2, 4.0), (3, 3.5))
    assert curves["val/loss"] == ((2, 3.0),)


def test_appending_keeps_order_and_drops_what_a_resumed_run_measures_again(tmp_path):
    folder = tmp_path / "new" / "run"
    for step in (0, 40, 80):
        append_evaluation(folder, {"stage": "fit", "global_step": step})
    append_evaluation(folder, {"stage": "validate", "global_step": 80})
    append_evaluation(folder, {"stage": "fit", "global_step": 40, "epoch": 7})
    assert steps(folder) == [("fit", 0), ("validate", 80), ("fit", 40)]
    assert read_run(folder).latest("fit").epoch == 7
    append_evaluation(folder, {"stage": "test", "global_step": 20})
    assert steps(folder)[-2:] == [("fit", 40), ("test", 20)]
    assert [path.name for path in folder.iterdir()] == ["evaluation.jsonl"]


def test_appending_leaves_a_damaged_line_for_the_report_to_name(tmp_path):
    (tmp_path / "evaluation.jsonl").write_text('{"stage": "fi')
    append_evaluation(tmp_path, {"stage": "fit", "global_step": 1})
    with pytest.raises(CheckpointError, match="line 1"):
        read_run(tmp_path)


def test_written_numbers_are_valid_json(tmp_path):
    record = {
        "stage": "fit",
        "global_step": np.int64(3),
        "text": {"kl": math.nan, "agreement": np.float32(0.5), "consistency_keys": (math.inf, 1.0)},
        "samples": [{"base": "\ud83d broken \u2028 é"}],
    }
    append_evaluation(tmp_path, record)
    stored = json.loads((tmp_path / "evaluation.jsonl").read_text(), parse_constant=pytest.fail)
    assert stored["text"] == {"kl": None, "agreement": 0.5, "consistency_keys": [None, 1.0]}
    assert stored["samples"] == record["samples"]


def test_finite_keeps_booleans_and_text():
    assert finite({"a": True, 2: ("b", None, -math.inf)}) == {"a": True, "2": ["b", None, None]}


def test_run_facts_round_trip(tmp_path):
    facts = {"base": {"source": "tiny"}, "seed": 1, "objective": {"base_weight": math.nan}}
    write_run_facts(tmp_path / "run", facts)
    assert read_run(tmp_path / "run").facts == {**facts, "objective": {"base_weight": None}}


def test_an_unusable_place_for_a_run_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot create the run folder"):
        write_run_facts(tmp_path / "file" / "run", {})
