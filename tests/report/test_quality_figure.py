"""The figure of text quality."""

from __future__ import annotations

from lit_kvpred.report.quality_figure import draw_quality


def test_every_artefact_text_and_tail_is_in_it(tmp_path):
    records = [
        {
            "artefact": f"runs/{name}/artefact", "text": text, "exact_tail": tail,
            "flops": 0.4 + 0.01 * tail, "agreement": 0.9, "agreement_first8": 0.8,
        }
        for name in ("k8", "k15")
        for text in ("stdlib", "novel.txt")
        for tail in (1, 64)
    ]  # fmt: skip
    draw_quality(records, tmp_path / "quality.svg")
    text = (tmp_path / "quality.svg").read_text()
    labels = ("k8, stdlib", "k8, novel", "k15, stdlib", "k15, novel", "first 8 tokens")
    assert all(f">{label}<" in text for label in labels)
    assert text.count(">k8, novel<") == 1
    assert text.count(">64<") == 8
