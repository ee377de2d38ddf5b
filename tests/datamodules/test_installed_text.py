"""Prose that every installation has, for calibration beyond source code."""

from __future__ import annotations

import pytest

from lit_kvpred.datamodules import TextDataModule
from lit_kvpred.datamodules.documents import TextFile
from lit_kvpred.datamodules.installed_text import (
    description_files,
    docstring_files,
    read_description,
    read_docstrings,
)
from lit_kvpred.datamodules.sources import concatenated_stream, resolve_source


def test_descriptions_are_the_prose_of_installed_packages():
    names = [file.name for file in description_files()]
    assert names == sorted(names, key=lambda name: name.split("/")[0])
    assert {"torch/METADATA", "transformers/METADATA", "pyyaml/METADATA"} <= set(names)
    (document,) = read_description(
        next(f for f in description_files() if f.name == "transformers/METADATA"), "text"
    )
    assert "Transformers" in document.text
    assert "Requires-Dist" not in document.text


@pytest.mark.parametrize("length", [10, 2000])
def test_a_description_of_a_line_or_two_is_no_document(tmp_path, length):
    file = tmp_path / "x-1.dist-info" / "METADATA"
    file.parent.mkdir()
    file.write_text("Metadata-Version: 2.1\nName: x\nVersion: 1\n\n" + "prose " * (length // 6))
    found = [d.name for d in read_description(TextFile("x/METADATA", str(file)), "text")]
    assert found == (["x/METADATA"] if length > 500 else [])


def test_docstrings_come_from_what_this_package_requires():
    packages = {file.name.split("/")[0] for file in docstring_files()}
    assert {"torch", "transformers", "lightning"} <= packages
    assert "pytest" not in packages
    assert not any("/tests/" in file.name for file in docstring_files())


def test_docstrings_of_all_levels_without_code(tmp_path):
    path = tmp_path / "m.py"
    line = "Says what it does. " * 10
    path.write_text(
        f'"""Module {line}"""\nSECRET = 1\nclass A:\n    """Class {line}"""\n'
        f'    def f(self):\n        """Method {line}"""\n'
        f'async def g():\n    """Async {line}"""\n    return SECRET\n'
    )
    (document,) = read_docstrings(TextFile("m.py", str(path)), "text")
    assert [p.split()[0] for p in document.text.split("\n\n")] == [
        "Module", "Class", "Async", "Method",
    ]  # fmt: skip
    assert "SECRET" not in document.text


@pytest.mark.parametrize("content", [b"def f(:", b"\0", b"x = 1"])
def test_a_module_without_readable_docstrings_is_left_out(tmp_path, content):
    path = tmp_path / "m.py"
    path.write_bytes(content)
    assert list(read_docstrings(TextFile("m.py", str(path)), "text")) == []


def test_the_sources_are_found_by_name_and_stream():
    source = resolve_source("package_descriptions")
    streamed = concatenated_stream([source], "text").take(3)
    documents = source.documents("text")
    assert list(streamed) == [next(documents)._asdict() for _ in range(3)]


def test_sources_of_other_sizes_are_balanced(tmp_path, tokenizer_folder, cache_folder):
    for name, letter, documents in (("small", "a", 40), ("large", "b", 400)):
        (tmp_path / name).mkdir()
        for i in range(documents):
            (tmp_path / name / f"{i}.txt").write_text(letter * 31)
    data = TextDataModule(
        tokenizer_folder,
        sources=[str(tmp_path / "small"), str(tmp_path / "large")],
        sequence_length=32,
        batch_size=1,
        validation_share=0.2,
        test_share=0.1,
        balance_sources=True,
    )
    data.setup()
    small, large = ord("a"), ord("b")
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        rows = [data.tokenizer.decode(b["input_ids"][0].tolist()) for b in loader]
        counts = [sum(chr(letter) in row for row in rows) for letter in (small, large)]
        assert counts[0] == counts[1] > 1
