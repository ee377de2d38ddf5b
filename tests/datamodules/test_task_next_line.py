from __future__ import annotations

import pytest

from lit_kvpred.datamodules.documents import Document
from lit_kvpred.datamodules.task_next_line import next_line_examples
from lit_kvpred.errors import DataError


def code(name: str, lines: int = 60) -> Document:
    return Document(name, "".join(f"    {name}_{i} = compute({i})\n" for i in range(lines)))


@pytest.fixture
def make(byte_tokenizer):
    def call(documents, prompt_tokens=(100,), limit=4, max_new_tokens=40, seed=0):
        return next_line_examples(
            documents,
            byte_tokenizer,
            prompt_tokens=prompt_tokens,
            limit=limit,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )

    return call


def test_prompts_are_the_longest_runs_of_lines_before_their_answers(make):
    document = code("alpha")
    for example in make([document], prompt_tokens=(100, 250)):
        most = int(example.task.removeprefix("next_line/"))
        (answer,) = example.answers
        assert document.text.count(f"{example.prompt}\n{answer}\n") == 1
        start = document.text.index(example.prompt)
        assert start == 0 or document.text[start - 1] == "\n"
        assert not example.prompt.endswith("\n")
        assert len(example.prompt) <= most
        line_before = document.text[: start - 1].rpartition("\n")[2]
        assert start == 0 or len(line_before) + 1 + len(example.prompt) > most
        assert (example.scoring, example.stop, example.max_new_tokens) == ("exact", ("\n",), 40)
        assert example.stop_after_text


def test_every_length_asks_about_the_same_lines(make):
    examples = make([code("alpha"), code("beta")], prompt_tokens=(100, 200, 300), limit=5)
    assert [e.task for e in examples] == [
        f"next_line/{n}" for n in (100, 200, 300) for _ in range(5)
    ]
    answers = [example.answers for example in examples]
    assert answers[:5] == answers[5:10] == answers[10:]
    assert len(set(answers[:5])) == 5


def test_documents_take_turns(make):
    examples = make([code("alpha"), code("beta"), code("gamma", 1)], limit=6)
    names = [example.answers[0].strip().partition("_")[0] for example in examples]
    assert sorted(names) == ["alpha"] * 3 + ["beta"] * 3


def test_the_choice_depends_on_the_seed_alone(make):
    documents = [code("alpha"), code("beta")]
    assert make(documents) == make(documents)
    assert make(documents) != make(documents, seed=1)


def test_answers_are_worth_asking_for(make):
    context = "x = 1\n" * 20
    unasked = "\n    )\n    # a comment of some length\n// another comment\n    x = 2\n" + "y" * 90
    document = Document("d", f"{context}value = 12\n{unasked}\n")
    answers = {example.answers for example in make([document], limit=50)}
    assert answers == {("value = 12",)}


def test_no_document_is_long_enough(make):
    with pytest.raises(DataError) as caught:
        make([code("alpha")], prompt_tokens=(100, 9999))
    assert str(caught.value) == (
        "next_line: none of 1 held-out documents has a prompt of 9999 tokens; lower prompt_tokens"
        " or name other data"
    )
