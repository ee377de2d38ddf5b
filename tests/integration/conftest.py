from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lit_kvpred.cli import main
from tests.base_folders import make_base, make_documents

ROOT = Path(__file__).parents[2]
RunCommand = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory) -> str:
    return make_base(tmp_path_factory.mktemp("base"), max_position_embeddings=512)


@pytest.fixture(scope="session")
def documents_folder(tmp_path_factory) -> str:
    return make_documents(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """A user's environment: no network, one thread, a token cache of its own."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "LIT_KVPRED_CACHE": str(tmp_path_factory.mktemp("cache")),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }


@pytest.fixture(scope="session")
def lit_kvpred(environment) -> RunCommand:
    """The command line without a new process, which costs seconds of imports each time."""

    def run(*words: str, stdin: str | None = None):
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIT_KVPRED_CACHE", environment["LIT_KVPRED_CACHE"])
            patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status = main(words)
                except SystemExit as end:
                    status = int(end.code or 0)
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    return run


@pytest.fixture(scope="session")
def lit_kvpred_process(environment) -> RunCommand:
    """The real command in a subprocess."""

    def run(*words: str, stdin: str | None = None):
        return subprocess.run(
            [sys.executable, "-m", "lit_kvpred", *words],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


@pytest.fixture(scope="session")
def fit_words(base_folder, documents_folder) -> Callable[..., list[str]]:
    """Arguments of a fit that takes seconds: three epochs of six batches."""

    def words(run: Path, *more: str) -> Sequence[str]:
        return [
            "fit",
            "--config=tiny",
            f"--run={run}",
            f"--model.base={base_folder}",
            "--model.calibration_batches=2",
            f"--data.sources=[{documents_folder}]",
            "--data.sequence_length=32",
            "--data.batch_size=2",
            "--data.validation_share=0.15",
            "--data.validation_sequences=4",
            "--evaluation.timing_prompt_tokens=[]",
            "--evaluation.prompts=null",
            "--evaluation.at_start=false",
            "--trainer.limit_train_batches=6",
            "--trainer.log_every_n_steps=1",
            "--trainer.enable_progress_bar=false",
            "--save_every=1",
            *more,
        ]

    return words


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed command prints about its error."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("lit-kvpred: error:")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]
