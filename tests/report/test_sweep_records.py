"""Reading what a sweep measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lit_kvpred.errors import CheckpointError
from lit_kvpred.report.records import read_run
from lit_kvpred.report.sweep_records import (
    by_task,
    common_settings,
    read_sweep,
    sweep_rows,
    varied_settings,
)
from tests.report.fabricated import sweep_record, sweep_records


def test_rows_hold_the_settings_that_act():
    base, sparse, speculative, sirius, catch_up = sweep_rows(
        [
            sweep_record("base"),
            sweep_record("sparse"),
            sweep_record("speculative", acceptance="lossless"),
            sweep_record("sirius"),
            sweep_record("catch_up", draft=None, draft_keep=None),
        ]
    )
    assert base.settings == {}
    assert sparse.settings == {"draft": "csparse", "draft_keep": 0.5}
    assert "threshold" not in speculative.settings
    assert "acceptance" not in speculative.settings
    assert sirius.settings["acceptance"] == "threshold"
    assert sirius.settings["rollback"] is True
    assert "rollback" not in catch_up.settings
    assert catch_up.settings["threshold"] == 0.1
    assert math.isnan(base.aal)
    assert sirius.retraction_rate == 0.1


def test_settings_that_vary_and_those_that_all_share():
    rows = sweep_rows(sweep_records())
    assert varied_settings(rows) == ["threshold", "draft_keep"]
    common = common_settings(rows)
    assert (common["period"], common["policy"], common["draft"]) == (8, "retract", "csparse")
    assert not set(common) & set(varied_settings(rows))


def test_tasks_keep_their_order():
    rows = sweep_rows([sweep_record("base", task) for task in ("b", "a", "b")])
    assert {task: len(own) for task, own in by_task(rows).items()} == {"b": 2, "a": 1}
    assert list(by_task(rows)) == ["b", "a"]


def test_a_run_folder_brings_its_sweep(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert read_run(tmp_path).sweep == ()
    content = {"environment": {}, "results": sweep_records()}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    assert read_run(tmp_path).sweep == tuple(sweep_rows(sweep_records()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"results": [', r"sweep\.json, line 1: .*lit-kvpred sweep --json"),
        ("", r"sweep\.json, line 1: .*lit-kvpred sweep --json"),
        ("[]", "holds no sweep"),
        ('{"results": [{"task": "next_line"}]}', "holds no sweep"),
        ('{"results": [3]}', "holds no sweep"),
        ("[" * 100_000, r"sweep\.json, line 1: .*nested too deeply"),
        ('{"results":\n[{"system": "base", "aal": ' + "1" * 5000 + "}]}", r"line 2: .*digits"),
        ('{"results": [{"system": "base", "period": [8]}]}', "result 1: period can't be .8."),
        (
            '{"results": [{"system": "base"}, {"system": "a", "draft": {}}]}',
            r"2: draft can.t be \{\};",
        ),
        ('{"results": [{"system": "base", "aal": "3"}]}', "result 1: aal can't be '3'; delete"),
        ('{"results": [{"system": "base", "task": 3}]}', "result 1: task can't be 3; delete"),
    ],
)
def test_a_damaged_sweep_is_named(text, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        read_sweep(Path("sweep.json"), text)
    assert "\n" not in str(caught.value)
