"""Programs are judged by whether they reach the end of their tests, and by nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.evaluation.unit_tests import UnitTests, passes, require_permission

DOUBLE = UnitTests(
    'def double(x):\n    """Twice x."""\n',
    "def check(candidate):\n    assert candidate(3) == 6\ncheck(double)\n",
)


@pytest.fixture
def allowed(monkeypatch):
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("    return x + x", True),
        ("    print('x' * 10**6)\n    return 2 * x\n", True),
        ("    import numpy as np\n    return np.add(x, x)", True),
        ("    return x", False),
        ("    return (", False),
        ("    return x + x\nexit(0)", False),
        ("    raise SystemExit", False),
        ("    import os; os._exit(0)", False),
        ("    input()\n    return x + x", False),
        ("    return 2 * x\n\0", False),
        ("    return '\ud800' and 2 * x", True),
        # Nothing that the program does to what it shares with its runner changes the verdict.
        ("    import os; os.write = os._exit = print\n    return x + x", True),
        ("    import shutil; shutil.rmtree('..', ignore_errors=True)\n    return x + x", True),
        ("    import os; os.chdir('/')\n    return x + x", True),
    ],
)
def test_right_is_what_reaches_the_end_of_the_tests(completion, right):
    assert passes(DOUBLE, completion) is right


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("wait", ["while True: pass", "import time; time.sleep(60)"])
def test_endless_programs_are_wrong_in_time(wait):
    start = time.monotonic()
    assert not passes(DOUBLE, f"    {wait}", seconds=0.5)
    assert time.monotonic() - start < 5


@pytest.mark.usefixtures("allowed")
def test_processes_that_a_program_starts_end_with_it(tmp_path):
    mark = tmp_path / "mark"
    child = f"import time, pathlib; time.sleep(1); pathlib.Path({str(mark)!r}).touch()"
    completion = (
        "    import subprocess, sys\n"
        f"    subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "    return x + x"
    )
    passes(DOUBLE, completion)
    time.sleep(1.5)
    assert not mark.exists()


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("much", "little"),
    [
        ("bytearray(3 << 30)", "bytearray(1 << 20)"),
        ("open('f', 'wb').truncate(32 << 20)", "open('f', 'wb').truncate(1 << 20)"),
    ],
)
def test_memory_and_files_are_limited(much, little):
    assert not passes(DOUBLE, f"    {much}\n    return 2 * x")
    assert passes(DOUBLE, f"    {little}\n    return 2 * x")


@pytest.mark.usefixtures("allowed")
def test_a_program_sees_an_empty_folder_no_environment_and_no_arguments(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen = tmp_path / "seen"
    completion = (
        "    import json, os, sys\n"
        "    found = [os.listdir(), dict(os.environ), len(sys.argv), sys.path, __name__]\n"
        f"    open({str(seen)!r}, 'w').write(json.dumps(found))\n"
        "    return x + x"
    )
    assert passes(DOUBLE, completion)
    files, environment, arguments, path, name = json.loads(seen.read_text())
    assert (files, arguments, name) == ([], 1, "__main__")
    assert "SECRET" not in environment
    assert not {"", str(tmp_path), str(Path.cwd())} & set(path)


@pytest.mark.usefixtures("allowed")
def test_a_program_runs_once_and_in_one_order_of_hashes(tmp_path):
    log = tmp_path / "log"
    note = f"open({str(log)!r}, 'a').write(str(hash('a')) + chr(10))"
    for addition in ("", "", "  # another program"):
        assert passes(DOUBLE, f"    {note}\n    return x + x{addition}")
    first, second = log.read_text().splitlines()
    assert first == second


@pytest.mark.parametrize("value", [None, "0", "true"])
def test_nothing_runs_unless_allowed(monkeypatch, tmp_path, value):
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_ALLOW_CODE_EVAL", value)
    mark = tmp_path / "mark"
    with pytest.raises(ConfigurationError, match="HF_ALLOW_CODE_EVAL=1") as caught:
        passes(DOUBLE, f"    open({str(mark)!r}, 'w')")
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    require_permission()


def test_no_tests_are_a_defect():
    with pytest.raises(AssertionError):
        UnitTests("def f(): pass", "\n")
