"""The table of a sweep names every setting, once."""

from __future__ import annotations

from lit_kvpred.report.sweep_records import sweep_rows
from lit_kvpred.report.sweep_table import sweep_table
from tests.report.fabricated import sweep_record, sweep_records


def test_varied_settings_are_columns_and_common_ones_in_the_title():
    table = sweep_table(sweep_rows(sweep_records()))
    assert table.header[:3] == ("System", "Threshold", "Neurons kept")
    assert table.title.startswith("next_line, 100 prompts (exact); policy retract, period 8,")
    for setting in ("temperature 0.6", "tree width 1", "cache rewriting yes", "draft csparse"):
        assert setting in table.title
    cells = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert [row["System"] for row in cells[:3]] == ["Base", "Sparse alone", "Speculative decoding"]
    assert cells[0]["Threshold"] == cells[1]["Threshold"] == "–"  # noqa: RUF001
    assert (cells[3]["Threshold"], cells[3]["Neurons kept"]) == ("0.05", "0.5")
    assert cells[2]["Expected advance"] == "4.16"
    assert cells[2]["Score"] == "48.0 %"


def test_what_nobody_measured_has_no_column():
    rows = [
        sweep_record("catch_up", draft=None, draft_keep=None, accuracy=None, threshold=t)
        for t in (0.1, 0.3)
    ]
    table = sweep_table(sweep_rows(rows))
    assert [row[0] for row in table.rows] == ["Corrected", "Corrected"]
    assert not {"Score", "Density", "Acceptance", "Tree width"} & set(table.header)
    assert "tree width" not in table.title


def test_switches_of_an_ablation_are_columns():
    rows = [sweep_record("sirius", rollback=r, kv_rewriting=not r) for r in (True, False)]
    table = sweep_table(sweep_rows(rows))
    assert table.header[1:3] == ("Cache rewriting", "Rollback")
    assert [row[1:3] for row in table.rows] == [("no", "yes"), ("yes", "no")]
