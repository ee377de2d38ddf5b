"""The section on corrections."""

from __future__ import annotations

from lit_kvpred.report.blocks import correction_blocks
from lit_kvpred.report.document import Gallery, Paragraph, Table
from lit_kvpred.report.records import append_evaluation, read_run
from lit_kvpred.report.series import progress_of
from tests.report.fabricated import evaluation, sparse_evaluation


def blocks(folder, *records):
    for record in records:
        append_evaluation(folder, record)
    run = read_run(folder)
    return correction_blocks("fit", run.fit, progress_of(run))


def test_every_system_with_checks_has_its_rows_and_rejections(tmp_path):
    settings, table, gallery = blocks(
        tmp_path, sparse_evaluation(0, 300), sparse_evaluation(300, 300)
    )
    assert isinstance(settings, Paragraph)
    assert "draft csparse, neurons kept 0.5" in settings.text
    assert "tpot" not in settings.text
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [
        "Corrected", "Corrected", "Sirius", *2 * ["Sirius after catch-up"],
    ]  # fmt: skip
    assert table.rows[2][2:5] == ("13.4", "0.712", "20.0 %")
    assert table.rows[0][3] == "–"  # noqa: RUF001
    assert isinstance(gallery, Gallery)
    (numbers,) = gallery.numbers
    assert numbers.header == ("Drafted token", "Sirius", "Sirius after catch-up")
    assert numbers.rows[0] == ("1", "9", "9")


def test_without_a_draft_nothing_speaks_of_it(tmp_path):
    settings, table = blocks(tmp_path, evaluation(0, 300, 0.1))
    assert isinstance(settings, Paragraph)
    assert "rollback" not in settings.text
    assert isinstance(table, Table)
    assert "Effective density" not in table.header


def test_records_of_earlier_versions_load(tmp_path):
    record = evaluation(0, 300, 0.1)
    record["correction"] = {
        "period": 16, "policy": "hold", "accepted_length": 8.0, "retraction_rate": 0.4,
        "unrecoverable_rate": 0.0, "time_to_exact_s": None,
    }  # fmt: skip
    settings, table = blocks(tmp_path, record)
    assert settings == Paragraph("Settings: period 16, policy hold.")
    assert isinstance(table, Table)
    assert table.rows == [("Corrected", "0", "9.0", "40.0 %", "–")]  # noqa: RUF001
