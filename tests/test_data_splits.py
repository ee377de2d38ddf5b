from __future__ import annotations

import hashlib
import sysconfig
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_kvpred.data_splits import split_of, standard_library_files


def _exact_fraction(name: str) -> Fraction:
    return Fraction(int(hashlib.sha256(name.encode()).hexdigest()[:16], 16), 2**64)


@given(st.text())
def test_split_is_where_the_hash_falls(name):
    fraction = _exact_fraction(name)
    expected = "test" if fraction < 0.25 else "validation" if fraction < 0.75 else "train"
    assert split_of(name, validation_share=0.5, test_share=0.25) == expected


def test_known_names_never_change_their_split():
    # The first eight digits of their SHA-256 are 0.23 and 0.85 of the way.
    assert split_of("json/decoder.py", validation_share=0.2, test_share=0.2) == "validation"
    assert split_of("json/decoder.py", validation_share=0.0, test_share=0.24) == "test"
    assert split_of("os.py", validation_share=0.4, test_share=0.4) == "train"


@given(st.text(), st.sampled_from(["train", "validation", "test"]))
def test_share_of_one_takes_everything(name, split):
    shares = {"train": (0, 0), "validation": (1, 0), "test": (0, 1)}[split]
    assert split_of(name, *shares) == split


def test_shares_are_met_over_many_names():
    counts = Counter(split_of(f"file{i}.py", 0.1, 0.05) for i in range(20_000))
    assert counts["validation"] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert counts["test"] / 20_000 == pytest.approx(0.05, abs=0.01)


@given(st.text(), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_larger_test_share_only_adds_documents(name, share, more):
    if split_of(name, 0, share) == "test":
        assert split_of(name, 0, min(1.0, share + more)) == "test"


@pytest.mark.parametrize("shares", [(-0.1, 0.5), (0.5, -0.1), (0.6, 0.5)])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(ValueError, match="sum to at most 1"):
        split_of("a", *shares)


def test_standard_library_is_listed_once_in_order_without_tests_and_packages():
    files = list(standard_library_files())
    names = [name for name, _ in files]
    root = Path(sysconfig.get_path("stdlib"))
    assert names == sorted(set(names))
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert all(path == root / name and path.is_file() for name, path in files)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "site-packages", "__pycache__", "encodings"}
