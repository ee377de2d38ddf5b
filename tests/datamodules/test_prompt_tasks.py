from __future__ import annotations

import json

import pytest
from jsonargparse import ArgumentParser

from lit_kvpred.data_splits import split_of
from lit_kvpred.datamodules import PromptTaskDataModule
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.answers import score
from lit_kvpred.evaluation.prompts import PromptExample

from .recording import Recorder, trainer


@pytest.fixture
def trivia_file(tmp_path) -> str:
    path = tmp_path / "trivia.jsonl"
    records = [{"question": f"Q{i}?", "golden_answers": [f"A{i}"]} for i in range(8)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "sources"
    folder.mkdir()
    for i in range(30):
        lines = [f"document_{i} = line({j})\n" for j in range(20)]
        (folder / f"{i}.py").write_text("".join(lines))
    return folder


def test_next_line_asks_about_held_out_documents(sources, tokenizer_folder):
    data = PromptTaskDataModule(
        tokenizer=tokenizer_folder,
        data={"next_line": str(sources)},
        prompt_tokens=[100, 150],
        limit=9,
        validation_share=0.2,
        test_share=0.1,
    )
    data.setup()
    assert [e.task for e in data.examples] == ["next_line/100"] * 9 + ["next_line/150"] * 9
    held_out = {i for i in range(30) if split_of(f"{i}.py", 0.2, 0.1) != "train"}
    asked = {int(e.answers[0].split()[0].removeprefix("document_")) for e in data.examples}
    assert asked <= held_out
    assert len(asked) == 9 < len(held_out)


def test_next_line_reads_the_standard_library_by_default(byte_tokenizer):
    data = PromptTaskDataModule(limit=3, prompt_tokens=[400])
    data.attach_tokenizer(byte_tokenizer)
    data.setup("validate")
    assert len(data.examples) == 3
    assert all(300 <= len(byte_tokenizer.encode(e.prompt)) <= 400 for e in data.examples)


def test_tasks_follow_one_another(trivia_file, sources, byte_tokenizer):
    data = PromptTaskDataModule(
        ["triviaqa", "next_line"],
        data={"triviaqa": trivia_file, "next_line": str(sources)},
        prompt_tokens=[100],
        limit=2,
        validation_share=0.5,
    )
    data.attach_tokenizer(byte_tokenizer)
    assert [e.task for e in data.examples] == ["triviaqa"] * 2 + ["next_line/100"] * 2


def test_loaders_yield_lists_of_examples(trivia_file):
    data = PromptTaskDataModule(["triviaqa"], data={"triviaqa": trivia_file}, limit=5, batch_size=2)
    data.setup("test")
    for loader in (data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert [example for batch in batches for example in batch] == data.examples
        assert isinstance(batches[0][0], PromptExample)


def test_a_trainer_can_predict(trivia_file, tmp_path):
    class Answering(Recorder):
        def predict_step(self, batch, batch_idx):
            return [score(example, example.answers[0]) for example in batch]

    data = PromptTaskDataModule(["triviaqa"], data={"triviaqa": trivia_file}, limit=5, batch_size=2)
    results = trainer(tmp_path).predict(Answering(), datamodule=data)
    assert results == [[1.0, 1.0], [1.0, 1.0], [1.0]]


def test_settings_reach_the_records(trivia_file):
    data = PromptTaskDataModule(
        ["triviaqa"], data={"triviaqa": trivia_file}, limit=2, shots=3, max_new_tokens=7
    )
    assert [e.prompt.count("Question:") for e in data.examples] == [4, 4]
    assert {e.max_new_tokens for e in data.examples} == {7}


def test_the_command_line_can_build_it():
    parser = ArgumentParser()
    parser.add_class_arguments(PromptTaskDataModule, "prompts")
    parsed = parser.parse_args(
        [
            "--prompts.tasks=[gsm8k]",
            "--prompts.data={gsm8k: a.jsonl}",
            "--prompts.prompt_tokens=[64]",
        ]
    )
    data = parser.instantiate(parsed).prompts
    assert (data.tasks, data.data, data.prompt_tokens) == (["gsm8k"], {"gsm8k": "a.jsonl"}, [64])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["chess"]}, "unknown task 'chess'; known are next_line, gsm8k, arc_easy"),
        ({"data": {"chess": "a"}}, "unknown task 'chess'"),
        ({"tasks": []}, "tasks is empty; name at least one, for example next_line"),
        ({"prompt_tokens": []}, r"prompt_tokens must be positive numbers, got \[\]"),
        ({"prompt_tokens": [128, 0]}, r"prompt_tokens must be positive numbers, got \[128, 0\]"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"shots": -1}, "shots must be at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        PromptTaskDataModule(**settings)
    assert "\n" not in str(caught.value)


def test_next_line_needs_a_tokenizer():
    with pytest.raises(
        ConfigurationError, match="next_line measures prompts in tokens; set tokenizer"
    ):
        PromptTaskDataModule().setup()


def test_tasks_that_run_code_are_refused_at_once_unless_allowed(monkeypatch):
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    with pytest.raises(ConfigurationError, match="runs code that a model wrote") as caught:
        PromptTaskDataModule(["next_line", "humaneval"])
    assert "\n" not in str(caught.value)
    PromptTaskDataModule(["next_line"], data={"humaneval": "unused"})
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    assert PromptTaskDataModule(["humaneval"]).tasks == ["humaneval"]
