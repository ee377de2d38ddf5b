from __future__ import annotations

import gzip
import json

import datasets
import pytest

from lit_kvpred.datamodules.task_arc import ARC_CHALLENGE, ARC_EASY
from lit_kvpred.datamodules.task_boolq import BOOLQ
from lit_kvpred.datamodules.task_commonsenseqa import COMMONSENSEQA
from lit_kvpred.datamodules.task_gsm8k import GSM8K
from lit_kvpred.datamodules.task_humaneval import HUMANEVAL
from lit_kvpred.datamodules.task_piqa import PIQA
from lit_kvpred.datamodules.task_records import record_examples
from lit_kvpred.datamodules.task_triviaqa import TRIVIAQA
from lit_kvpred.errors import DataError
from lit_kvpred.evaluation.answers import score

SETTINGS = {"limit": 100, "shots": 0, "max_new_tokens": None, "seed": 1}


def write(path, records):
    if path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def only(task, record, path):
    (example,) = record_examples(task, write(path, [record]), **SETTINGS)
    assert example.task == task.name
    return example


def test_gsm8k(tmp_path):
    record = {
        "question": "How many eggs are left of 16?",
        "answer": "She eats 3 = <<3=3>>3.\n16 - 3 = <<16-3=13>>13\n#### 1,013",
    }
    example = only(GSM8K, record, tmp_path / "test.jsonl")
    assert example.prompt == "Question: How many eggs are left of 16?\nAnswer:"
    assert (example.answers, example.scoring) == (("1,013",), "last_number")
    assert (example.stop, example.max_new_tokens) == (("Question:",), 256)


def test_gsm8k_solutions_come_without_calculator_notes(tmp_path):
    records = [{"question": f"Q{i}?", "answer": f"x = <<{i}>>{i}\n#### {i}"} for i in range(2)]
    path = write(tmp_path / "a.jsonl", records)
    (example,) = record_examples(GSM8K, path, **(SETTINGS | {"limit": 1, "shots": 1}))
    asked = int(example.answers[0])
    other = 1 - asked
    assert example.prompt == (
        f"Question: Q{other}?\nAnswer: x = {other}\n#### {other}\n\nQuestion: Q{asked}?\nAnswer:"
    )


HUB_ARC = {
    "id": "M1",
    "question": "What is wet?",
    "choices": {"text": ["fire", "water", "sand"], "label": ["1", "2", "3"]},
    "answerKey": "2",
}
INSTRUCTION_ARC = {
    "instruction": "Please choose the correct answer to the question: What is wet?\n\nAnswer1: fire"
    " Answer2: water Answer3: sand\n\nAnswer format: answer1/answer2/answer3",
    "input": "",
    "output": "the correct answer is answer2",
    "answer": "answer2",
}


@pytest.mark.parametrize("task", [ARC_EASY, ARC_CHALLENGE])
@pytest.mark.parametrize("record", [HUB_ARC, INSTRUCTION_ARC])
def test_arc(tmp_path, task, record):
    example = only(task, record, tmp_path / "a.json")
    assert example.prompt == "Question: What is wet?\nAnswer:"
    assert example.choices == (" fire", " water", " sand")
    assert (example.gold, example.answers, example.scoring) == (1, (" water",), "choice")


HUB_PIQA = {"goal": "Dry a cup", "sol1": "Use a towel.", "sol2": "Use: water.", "label": 1}
INSTRUCTION_PIQA = {
    "instruction": "Please choose the correct solution to the question: Dry a cup\n\nSolution1: Use"
    " a towel.\n\nSolution2: Use: water.\n\nAnswer format: solution1/solution2",
    "answer": "solution2",
}


@pytest.mark.parametrize("record", [HUB_PIQA, INSTRUCTION_PIQA])
def test_piqa(tmp_path, record):
    example = only(PIQA, record, tmp_path / "a.json")
    assert example.prompt == "Question: Dry a cup\nAnswer:"
    assert (example.choices, example.gold) == ((" Use a towel.", " Use: water."), 1)


def test_boolq(tmp_path):
    hub = {"passage": "Ice floats.\n", "question": "does ice float", "answer": True}
    example = only(BOOLQ, hub, tmp_path / "a.jsonl")
    assert example.prompt == "Ice floats.\nQuestion: does ice float?\nAnswer:"
    assert (example.choices, example.gold) == ((" no", " yes"), 1)
    instruction = {
        "instruction": "Please answer the following question with true or false, question: does ice"
        " sink?\n\nAnswer format: true/false",
        "answer": "false",
    }
    example = only(BOOLQ, instruction, tmp_path / "a.json")
    assert example.prompt == "Question: does ice sink?\nAnswer:"
    assert (example.gold, example.answers) == (0, (" no",))


NESTED = {
    "answerKey": "B",
    "question": {
        "stem": "Where is snow?",
        "choices": [{"label": "A", "text": "oven"}, {"label": "B", "text": "alps"}],
    },
}
FLAT = {
    "question": "Where is snow?",
    "choices": {"label": ["A", "B"], "text": ["oven", "alps"]},
    "answerKey": "B",
}


@pytest.mark.parametrize("record", [NESTED, FLAT])
def test_commonsenseqa(tmp_path, record):
    example = only(COMMONSENSEQA, record, tmp_path / "dev_rand_split.jsonl")
    assert example.prompt == "Question: Where is snow?\nAnswer:"
    assert (example.choices, example.gold) == ((" oven", " alps"), 1)


TRIVIA_HUB = {
    "question": "Who wrote Emma?",
    "answer": {"value": "Jane Austen", "aliases": ["Austen", "Jane Austen"]},
}
TRIVIA_LOCAL = {
    "id": "test_1",
    "question": "Who wrote Emma?",
    "golden_answers": ["Austen", "Jane Austen"],
}


@pytest.mark.parametrize("record", [TRIVIA_HUB, TRIVIA_LOCAL])
def test_triviaqa(tmp_path, record):
    example = only(TRIVIAQA, record, tmp_path / "a.jsonl")
    assert example.prompt == "Question: Who wrote Emma?\nAnswer:"
    assert example.answers == ("Austen", "Jane Austen")
    assert (example.scoring, example.stop) == ("normalised", ("\n", ".", ","))


HUMANEVAL_RECORDS = [
    {
        "task_id": f"HumanEval/{n}",
        "prompt": f'def times_{n}(x: int) -> int:\n    """{n} times x."""\n',
        "entry_point": f"times_{n}",
        "canonical_solution": f"    return {n} * x\n",
        "test": f"\n\ndef check(candidate):\n    assert candidate(5) == {5 * n}\n",
    }
    for n in (2, 3)
]


def test_humaneval(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    path = write(tmp_path / "HumanEval.jsonl", HUMANEVAL_RECORDS)
    examples = record_examples(HUMANEVAL, path, **(SETTINGS | {"shots": None}))
    assert [e.prompt for e in examples] == [r["prompt"] for r in HUMANEVAL_RECORDS]
    assert {(e.scoring, e.max_new_tokens) for e in examples} == {("unit_tests", 256)}
    (two, three), tail = examples, "\n\nprint(times_2(1))\n"
    for example in examples:
        assert score(example, example.answers[0]) == score(example, example.answers[0] + tail) == 1
        assert score(example, "    return x") == 0
    assert score(two, three.answers[0]) == 0


def test_humaneval_solved_examples_are_functions_and_no_part_of_the_program(tmp_path):
    path = write(tmp_path / "HumanEval.jsonl", HUMANEVAL_RECORDS)
    (example,) = record_examples(HUMANEVAL, path, **(SETTINGS | {"limit": 1, "shots": 1}))
    asked, other = HUMANEVAL_RECORDS
    if asked["canonical_solution"] != example.answers[0]:
        asked, other = other, asked
    assert example.prompt == f"{other['prompt']}{other['canonical_solution']}\n\n{asked['prompt']}"
    assert example.unit_tests.before == asked["prompt"]


def test_a_hub_task_of_one_split_never_solves_what_it_asks(monkeypatch):
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a, **k: datasets.Dataset.from_list(HUMANEVAL_RECORDS)
    )
    for seed in range(4):
        settings = SETTINGS | {"limit": 1, "shots": 1, "seed": seed}
        (example,) = record_examples(HUMANEVAL, None, **settings)
        assert example.answers[0] not in example.prompt


def test_a_humaneval_folder_may_hold_a_gzip_ed_file(tmp_path):
    lines = "".join(json.dumps(record) + "\n" for record in HUMANEVAL_RECORDS)
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "LICENSE").write_text("MIT")
    assert len(record_examples(HUMANEVAL, str(tmp_path), **SETTINGS)) == 2


@pytest.mark.parametrize("damage", [{"entry_point": "f)\nexit("}, {"test": None}, {"test": ""}])
def test_humaneval_of_another_layout(tmp_path, damage):
    path = write(tmp_path / "a.jsonl", [HUMANEVAL_RECORDS[0] | damage])
    assert "line 1 has not the layout of humaneval" in refusal(HUMANEVAL, path)


def trivia(n):
    return [{"question": f"Q{i}?", "golden_answers": [f"A{i}", "B"]} for i in range(n)]


def test_triviaqa_has_one_solved_example_on_the_line_before(tmp_path):
    path = write(tmp_path / "a.jsonl", trivia(9))
    examples = record_examples(TRIVIAQA, path, **(SETTINGS | {"limit": 4, "shots": None}))
    asked = {int(example.answers[0][1:]) for example in examples}
    for example in examples:
        solved, solution, question, answer = example.prompt.split("\n")
        shown = int(solution.removeprefix("Answer: A"))
        assert (solved, question, answer) == (
            f"Question: Q{shown}?",
            f"Question: Q{example.answers[0][1:]}?",
            "Answer:",
        )
        assert shown not in asked


def test_solved_examples_come_from_the_training_file_of_a_folder(tmp_path):
    write(tmp_path / "train.jsonl", [{"question": "T?", "golden_answers": ["t"]}])
    write(tmp_path / "validation.jsonl", trivia(3))
    examples = record_examples(TRIVIAQA, str(tmp_path), **(SETTINGS | {"shots": 1}))
    assert len(examples) == 3
    assert all(e.prompt.startswith("Question: T?\nAnswer: t\nQuestion: Q") for e in examples)


def test_hub_records(monkeypatch):
    asked = []

    def load_dataset(path, config, split, streaming):
        asked.append((path, config, split))
        return datasets.Dataset.from_list([HUB_PIQA])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (example,) = record_examples(PIQA, None, **(SETTINGS | {"shots": 1}))
    assert (
        example.prompt == "Question: Dry a cup\nAnswer: Use: water.\n\nQuestion: Dry a cup\nAnswer:"
    )
    assert asked == [("baber/piqa", None, "validation"), ("baber/piqa", None, "train")]


def test_the_choice_of_prompts_depends_on_the_seed_alone(tmp_path):
    path = write(tmp_path / "a.jsonl", trivia(50))

    def chosen(seed):
        settings = SETTINGS | {"limit": 6, "seed": seed, "shots": 1}
        return [example.prompt for example in record_examples(TRIVIAQA, path, **settings)]

    assert chosen(1) == chosen(1)
    assert len(set(chosen(1))) == 6
    assert chosen(1) != chosen(2)


def test_most_tokens_can_be_set(tmp_path):
    path = write(tmp_path / "a.jsonl", trivia(1))
    (example,) = record_examples(TRIVIAQA, path, **(SETTINGS | {"max_new_tokens": 5}))
    assert example.max_new_tokens == 5


def refusal(task, data, **settings):
    with pytest.raises(DataError) as caught:
        record_examples(task, str(data), **(SETTINGS | settings))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_records_of_another_layout_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "Q?"}])
    assert refusal(GSM8K, path) == (
        f"{path}, line 1 has not the layout of gsm8k: KeyError 'answer'"
    )
    unknown = HUB_ARC | {"answerKey": "9"}
    assert "has not the layout of arc_easy" in refusal(
        ARC_EASY, write(tmp_path / "b.json", [unknown])
    )


def test_too_few_records_for_solved_examples(tmp_path):
    path = write(tmp_path / "a.jsonl", trivia(2))
    assert refusal(TRIVIAQA, path, shots=1).startswith(
        "triviaqa: 1 solved examples wanted, 0 records left"
    )


def test_missing_ambiguous_and_empty_files(tmp_path):
    assert refusal(PIQA, tmp_path / "gone") == f"{tmp_path / 'gone'}: no such file or folder"
    assert f"{tmp_path} has no record file where one validation file" in refusal(PIQA, tmp_path)
    for name in ("piqa.json", "other.json"):
        write(tmp_path / name, [HUB_PIQA])
    assert "has other.json, piqa.json where one validation file" in refusal(PIQA, tmp_path)
    write(tmp_path / "empty.jsonl", [])
    assert refusal(PIQA, tmp_path / "empty.jsonl") == f"{tmp_path / 'empty.jsonl'} holds no record"
