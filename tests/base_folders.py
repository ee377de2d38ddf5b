"""Tiny random bases as folders with a byte-level tokenizer, for everything that loads from disk."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import tiny_model

BYTE_VOCABULARY = 258


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, then end-of-sequence (256) and padding (257)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>", pad_token="<p>")


def make_base(folder: Path, family: str = "llama", seed: int = 0, **overrides) -> str:
    """Save a random base of ``family``; returns the folder."""
    values = {
        "vocab_size": BYTE_VOCABULARY,
        "bos_token_id": 256,
        "eos_token_id": 256,
        "pad_token_id": 257,
        **overrides,
    }
    tiny_model(family, seed=seed, **values).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def make_documents(folder: Path, count: int = 60) -> str:
    """Save ``count`` short text files with lines worth completing; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        lines = [f"def function_{i}_{j}(argument_{j}): return {i * j}" for j in range(12)]
        (folder / f"doc{i:03d}.py").write_text("\n".join(lines) + "\n")
    return str(folder)


def make_problems(folder: Path) -> str:
    """Save two HumanEval problems that any completion leaves right and wrong; returns the file.

    Their functions are complete, and what a random base writes stands in a text behind them.
    """
    records = [
        {
            "prompt": 'def one():\n    return 1\n\n\nNOTE = r"""\n',
            "canonical_solution": "Nothing.",
            "test": f'"""\ndef check(candidate):\n    assert candidate() == {result}\n',
            "entry_point": "one",
        }
        for result in (1, 2)
    ]
    file = folder / "problems.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)
