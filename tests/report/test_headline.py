"""What the headline says, and what it admits not to know."""

import json

from lit_kvpred.report.headline import KeyFigures, headline, key_figures, tiles
from lit_kvpred.report.records import append_evaluation, read_run
from lit_kvpred.report.schema import Accuracy
from tests.report.fabricated import evaluation, timing_record


def test_headline_of_a_complete_run(run_folder):
    figures = key_figures(read_run(run_folder))
    assert headline(figures) == (
        "With a prompt of 1,024 tokens the first token comes after 358 ms instead of 634 ms"
        " (1.77× as fast), and the base picks the same next token on predicted rows as on exact"  # noqa: RUF001
        " ones at 84.3 % of the positions. Accuracy on 2 tasks (their mean), 80 prompts: 39.1 %"
        " base, 31.2 % predicted, 38.3 % corrected, 1.6 % auxiliary alone."
    )
    assert [tile.value for tile in tiles(figures)] == ["1.77×", "358 ms", "84.3 %", "38.3 %"]  # noqa: RUF001


def test_headline_without_any_measure(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    figures = key_figures(read_run(tmp_path))
    assert headline(figures) == (
        "The time to first token has not been measured; agreement with the base has not been"
        " measured. Accuracy has not been measured."
    )
    assert tiles(figures) == []


def test_headline_of_one_task_and_a_slow_down(tmp_path):
    slow = timing_record(64)
    slow["speedup"] = 0.8
    record = {
        "stage": "fit",
        "global_step": 1,
        "timing": [slow],
        "accuracy": {"gsm8k": {"n": 1, "base": 0.5, "predicted": 0.25}},
    }
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(record))
    text = headline(key_figures(read_run(tmp_path)))
    assert "(slower than the base: 0.80× its speed)" in text  # noqa: RUF001
    assert text.endswith("Accuracy on gsm8k, 1 prompt: 50.0 % base, 25.0 % predicted.")


def test_figures_are_those_of_the_longest_prompt_at_the_smallest_batch(tmp_path):
    rows = [timing_record(prompt) for prompt in (512, 128)]
    large = timing_record(1024) | {"batch_size": 8}
    record = {"stage": "fit", "global_step": 1, "timing": [large, *rows]}
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(record))
    timing = key_figures(read_run(tmp_path)).timing
    assert (timing.prompt_tokens, timing.batch_size) == (512, 1)


def test_each_figure_is_the_latest_measured_in_training_then_by_test(tmp_path):
    first = evaluation(10, 300, 0.1)
    second = {"stage": "fit", "global_step": 20, "text": {"agreement": 0.75}}
    for record in (first, second, evaluation(20, 300, 0.1, stage="test")):
        append_evaluation(tmp_path, record)
    figures = key_figures(read_run(tmp_path))
    assert figures.text.agreement == 0.75
    assert figures.timing.prompt_tokens == 1024

    only_test = tmp_path / "other"
    append_evaluation(only_test, evaluation(20, 300, 0.1, stage="test"))
    assert key_figures(read_run(only_test)).text is not None


def test_a_finer_measure_stands_for_exact_matches_where_all_tasks_have_it():
    shares = {"base": 0.0, "predicted": 0.0}
    similar = {"base": 0.5, "predicted": 0.3}
    tasks = [Accuracy(f"next_line/{n}", "exact", 4, shares, similar) for n in (128, 256)]
    figures = KeyFigures(None, None, tuple(tasks))
    assert headline(figures).endswith(
        "Edit similarity on 2 tasks (their mean), 8 prompts: 50.0 % base, 30.0 % predicted."
    )
    mixed = KeyFigures(None, None, (*tasks, Accuracy("gsm8k", "last_number", 2, similar, {})))
    assert "Accuracy on 3 tasks" in headline(mixed)
