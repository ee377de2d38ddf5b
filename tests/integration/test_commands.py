"""The commands of a user's day, through the real command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lit_kvpred.configs import packaged_configs
from tests.base_folders import make_problems
from tests.integration.conftest import error_line


@pytest.fixture(scope="module")
def run(lit_kvpred_process, fit_words, documents_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "run"
    prompts = json.dumps(
        {
            "class_path": "lit_kvpred.datamodules.PromptTaskDataModule",
            "init_args": {
                "tasks": ["next_line"],
                "data": {"next_line": documents_folder},
                "prompt_tokens": [128],
                "limit": 3,
                "max_new_tokens": 60,
                "validation_share": 0.15,
            },
        }
    )
    result = lit_kvpred_process(
        *fit_words(
            folder,
            "--trainer.max_epochs=2",
            "--evaluation.at_start=true",
            "--evaluation.timing_prompt_tokens=[16,32]",
            "--evaluation.timing_repeats=2",
            f"--evaluation.prompts={prompts}",
        )
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_what_a_run_leaves_behind(run):
    for name in (
        "config.yaml", "metrics.csv", "run.json", "evaluation.jsonl", "checkpoints/last.ckpt",
        "report.md", "report.html", "report.json", "artefact/config.json",
        "artefact/model.safetensors", "artefact/auxiliary/config.json",
    ):  # fmt: skip
        assert (run / name).is_file(), name
    assert len(list((run / "checkpoints").glob("best*.ckpt"))) == 1


def test_evaluation_records(run):
    records = [json.loads(line) for line in (run / "evaluation.jsonl").open()]
    assert [r["global_step"] for r in records] == [0, 6, 12]
    assert [r["tokens_seen"] for r in records] == [0, 6 * 2 * 32, 12 * 2 * 32]
    for record in records:
        assert record["stage"] == "fit"
        assert len(record["text"]["consistency_keys"]) == 4
        assert [t["prompt_tokens"] for t in record["timing"]] == [16, 32]
        assert record["timing"][0]["kv_prediction"]["n"] == 2
        accuracy = record["accuracy"]["next_line/128"]
        assert accuracy["n"] == 3
        assert {"base", "predicted", "corrected", "auxiliary"} <= accuracy.keys()
        assert record["correction"]["systems"]["corrected"]["time_to_exact_s"]["n"] == 3
        assert len(record["samples"]) == 3
    # The frozen base is the same throughout; least squares and training move the rest.
    assert len({r["text"]["cross_entropy_base"] for r in records}) == 1
    assert len({r["text"]["kl"] for r in records}) == 3


def test_run_facts(run):
    facts = json.loads((run / "run.json").read_text())
    assert facts["auxiliary"]["kept"] == [0, 2]
    assert facts["predictor"]["layer_map"] == [0, 0, 1, 1]
    assert facts["base"]["family"] == "llama"
    assert facts["versions"]["torch"]


@pytest.mark.parametrize("command", ["validate", "test"])
def test_measuring_again(lit_kvpred, run, command):
    before = [json.loads(line) for line in (run / "evaluation.jsonl").open()]
    config = (run / "config.yaml").read_bytes()
    result = lit_kvpred(command, f"--run={run}", "--trainer.enable_progress_bar=false")
    assert result.returncode == 0, result.stderr
    after = [json.loads(line) for line in (run / "evaluation.jsonl").open()]
    assert after[: len(before)] == before
    assert after[-1]["stage"] == command
    best = min((r for r in before if r["stage"] == "fit"), key=lambda r: r["text"]["kl"])
    assert after[-1]["global_step"] in (6, 12)
    if command == "validate" and best["global_step"] > 0:
        assert after[-1]["global_step"] == best["global_step"]
        assert after[-1]["text"]["kl"] == pytest.approx(best["text"]["kl"], rel=1e-4)
    assert (run / "config.yaml").read_bytes() == config


def test_predict_writes_answers(lit_kvpred, run):
    result = lit_kvpred("predict", f"--run={run}", "--trainer.enable_progress_bar=false")
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in (run / "predictions.jsonl").open()]
    assert len(answers) == 3
    assert {"task", "prompt", "predicted", "corrected"} <= answers[0].keys()


def test_generate_streams_events(lit_kvpred_process, lit_kvpred, run):
    result = lit_kvpred_process(
        "generate", str(run / "artefact"), "--prompt", "def function_1(", "--json_events",
        "true", "--max_new_tokens", "12", "--period", "4", "--threshold", "2", "--policy",
        "retract", "--draft", "csparse",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert events[-1]["event"] == "GenerationStats"
    assert events[-1]["drafted"] == events[-1]["retracted"] > 4
    assert events[-1]["sparse_step_s"]
    assert "RetractionEvent" in {e["event"] for e in events}
    shown = 0
    for event in events:
        shown += {"TokenEvent": 1, "RetractionEvent": -event.get("count", 0)}.get(event["event"], 0)
    assert shown == events[-1]["new_tokens"]
    plain = lit_kvpred("generate", str(run / "artefact"), "--max_new_tokens=4", stdin="def f(")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.strip() or plain.stdout == "\n"


def test_bench_times_every_variant(lit_kvpred, run, documents_folder, tmp_path):
    out = tmp_path / "bench.json"
    result = lit_kvpred(
        "bench", str(run / "artefact"), "--prompt_tokens=[20,40]", "--new_tokens=6",
        "--slice_rows=[8]", "--rounds=2", f"--text={documents_folder}", f"--json={out}",
        "--threshold=2", "--draft=csparse", "--period=3",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    assert written["environment"]["base"]["fingerprint"]
    records = written["results"]
    assert [r["prompt_tokens"] for r in records] == [20] * 7 + [40] * 7
    systems = ["base", "predicted", "catch_up", "catch_up", "sirius", "sirius_catch_up"]
    systems += ["speculative"]
    assert [r["system"] for r in records] == systems * 2
    assert [r["slice_rows"] for r in records] == [None, None, None, 8, None, None, None] * 2
    assert all(r["same_text"] == 1 for r in records if r["system"] != "predicted")
    assert all(r["aal"] == 1 for r in records if "sirius" in r["system"])
    assert all(r["ttft_s"]["n"] == 2 and r["threads"] == 1 for r in records)
    assert result.stdout.count("8 rows") == result.stdout.count("advance") - 1 == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt_tokens=500"], "takes prompts of 2 to 448 tokens, got [500]; change --prompt"),
        (["--new_tokens=600"], "change --prompt_tokens or --new_tokens"),
        (["--rounds=0"], "--rounds must be at least 1, got 0"),
        (["--new_tokens=1"], "--new_tokens must be at least 2, got 1"),
        (["--threads=[1,0]"], "--threads must be at least 1, got 0"),
        (["--json=/nowhere/x.json"], "/nowhere is no folder; make it first"),
        (["--prompt_tokens=40", "--rounds=5000"], "5000 are needed; give more text, fewer rounds"),
    ],
)
def test_bench_refuses_what_it_cannot_time(lit_kvpred, run, documents_folder, words, message):
    result = lit_kvpred("bench", str(run / "artefact"), f"--text={documents_folder}", *words)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_quality_measures_artefacts_on_texts(lit_kvpred, run, documents_folder, tmp_path):
    out, figure = tmp_path / "quality.json", tmp_path / "quality.svg"
    artefact = str(run / "artefact")
    result = lit_kvpred(
        "quality", artefact, artefact, f"--text=[{documents_folder},stdlib]", "--held_out=0.5",
        "--prompt_tokens=12", "--measured_tokens=10", "--exact_tails=[1,4]", "--sequences=3",
        f"--json={out}", f"--figure={figure}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = json.loads(out.read_text())["results"]
    assert len(rows) == 2 * 2 * 2
    assert rows[:4] == rows[4:]
    assert [r["text"] for r in rows[:4]] == [str(documents_folder)] * 2 + ["stdlib"] * 2
    assert [r["exact_tail"] for r in rows[:4]] == [1, 4, 1, 4]
    assert all(r["tokens"] == 30 and 0 <= r["agreement"] <= 1 for r in rows)
    assert rows[0]["flops"] < rows[1]["flops"]
    assert "agreement" in result.stdout
    assert "FLOPs to the first token" in figure.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--exact_tails=[1,0]"],
            "--exact_tails must be a whole number of at least 1 or a fraction",
        ),
        (["--exact_tails=1.5"], "fraction between 0 and 1, got 1.5"),
        (["--prompt_tokens=0"], "--prompt_tokens must be at least 1, got 0"),
        (["--measured_tokens=0"], "--measured_tokens must be at least 1, got 0"),
        (["--figure=x.xyz"], "must end in one of .svg, .png, .pdf"),
        (["--json=/"], "--json / is a folder; name a file in it"),
        (["--held_out=1"], "--held_out must be above 0 and below 0.95, got 1"),
        (["--json=/nowhere/x.json"], "/nowhere is no folder; make it first"),
    ],
)
def test_quality_refuses_what_it_cannot_measure(lit_kvpred, run, words, message):
    result = lit_kvpred("quality", str(run / "artefact"), *words)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_quality_of_a_text_too_short_names_the_option(lit_kvpred, run, tmp_path):
    (tmp_path / "short.txt").write_text("short")
    text = str(tmp_path / "short.txt")
    result = lit_kvpred("quality", str(run / "artefact"), f"--text={text}")
    assert result.returncode == 1
    assert f"no sequence of 256 tokens of {text} is held out" in result.stderr
    assert "raise --held_out" in result.stderr


def sweep_words(run: Path, *more: str) -> list[str]:
    return [
        "sweep", str(run / "artefact"), f"--data.next_line={Path(__file__).parents[1]}",
        "--limit=5", "--prompt_tokens=20", "--new_tokens=6", "--periods=3", *more,
    ]  # fmt: skip


def test_sweep_compares_settings(lit_kvpred, run, tmp_path):
    out = tmp_path / "sweep.json"
    result = lit_kvpred(*sweep_words(run, "--thresholds=[0,1.1]", f"--json={out}"))
    assert result.returncode == 0, result.stderr
    base, *rows = json.loads(out.read_text())["results"]
    assert (base["system"], base["same_text"], base["policy"]) == ("base", 1, None)
    settings = [("retract", 0), ("retract", 1.1), ("commit", 0), ("commit", 1.1)]
    assert [(r["policy"], r["threshold"]) for r in rows] == [(None, None), *settings]
    assert all(r["task"] == "next_line" and r["answers"] == 5 for r in rows)
    assert all(0 <= r["accuracy"] <= 1 for r in rows)
    assert rows[2]["same_text"] == 1
    assert "retract" in result.stdout
    assert "Taken back" in result.stdout


def test_sweep_scores_by_unit_tests_where_that_is_allowed(lit_kvpred, run, tmp_path, monkeypatch):
    out = tmp_path / "sweep.json"
    words = sweep_words(
        run, "--tasks=[next_line,humaneval]", f"--data.humaneval={make_problems(tmp_path)}",
        "--policies=retract", "--thresholds=[0,1.1]", f"--json={out}",
    )  # fmt: skip
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    result = lit_kvpred(*words)
    assert result.returncode == 1
    assert "HF_ALLOW_CODE_EVAL=1" in error_line(result)
    assert result.stdout == ""
    assert not out.exists()
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    result = lit_kvpred(*words)
    assert result.returncode == 0, result.stderr
    rows = [r for r in json.loads(out.read_text())["results"] if r["task"] == "humaneval"]
    assert [(r["metric"], r["answers"], r["accuracy"]) for r in rows] == 4 * [
        ("unit_tests", 2, 0.5)
    ]
    assert "(unit tests)" in result.stdout


def test_predict_answers_problems(lit_kvpred, run, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    prompts = {
        "class_path": "lit_kvpred.datamodules.PromptTaskDataModule",
        "init_args": {
            "tasks": ["humaneval"],
            "data": {"humaneval": make_problems(tmp_path)},
            "max_new_tokens": 4,
        },
    }
    words = (
        "predict", f"--run={folder}", f"--evaluation.prompts={json.dumps(prompts)}",
        "--trainer.enable_progress_bar=false",
    )  # fmt: skip
    monkeypatch.delenv("HF_ALLOW_CODE_EVAL", raising=False)
    assert "HF_ALLOW_CODE_EVAL=1" in error_line(lit_kvpred(*words))
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "1")
    result = lit_kvpred(*words)
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in (folder / "predictions.jsonl").open()]
    assert [a["task"] for a in answers] == ["humaneval"] * 2


def test_sweep_of_sparse_drafts_goes_into_figure_and_report(lit_kvpred, run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    figure = tmp_path / "sweep.svg"
    result = lit_kvpred(
        *sweep_words(
            run, "--draft=csparse", "--draft_keeps=[0.25,0.5]", "--tree_widths=[1,2]",
            "--thresholds=0.1", "--exact_prompt=true", f"--json={folder / 'sweep.json'}",
            f"--figure={figure}",
        )
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = json.loads((folder / "sweep.json").read_text())["results"]
    systems = ["base", *2 * ["sparse", "speculative"], *4 * ["sirius"]]
    assert [r["system"] for r in rows] == systems
    assert [(r["draft_keep"], r["tree_width"]) for r in rows[5:]] == [
        (0.25, 1), (0.25, 2), (0.5, 1), (0.5, 2),
    ]  # fmt: skip
    assert all(r["same_text"] == 1 for r in rows if r["system"] == "speculative")
    assert "Speculative decoding" in figure.read_text()
    assert lit_kvpred("report", str(folder)).returncode == 0
    assert "Correction settings" in (folder / "report.html").read_text()


def test_an_ablation_takes_each_part_of_sirius_away(lit_kvpred, run, tmp_path):
    out = tmp_path / "sweep.json"
    result = lit_kvpred(
        *sweep_words(run, "--draft=csparse", "--ablation=true", f"--json={out}", "--limit=2")
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(out.read_text())["results"][2:]
    switches = {(r["kv_rewriting"], r["rollback"], r["interleave"]) for r in rows}
    assert len(rows) == len(switches) == 8
    assert {(r["policy"], r["threshold"], r["system"]) for r in rows} == {
        ("retract", 0.1, "sirius_catch_up")
    }
    assert "Interleave" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--draft_keeps=0.5"], "--draft_keeps needs sparse drafts; add --draft csparse"),
        (["--tree_widths=[1,2]", "--ablation=true"], "--tree_widths and --ablation need sparse"),
        (["--exact_prompt=true"], "--exact_prompt needs sparse drafts"),
        (["--figure=x.svg"], "--figure needs sparse drafts"),
        (["--draft=csparse", "--figure=x.xyz"], "must end in one of .svg, .png, .pdf"),
        (["--draft=csparse", "--draft_keeps=[0.5,2]"], "sparsity keep must be a number above 0"),
        (["--draft=csparse", "--ablation=true", "--tree_widths=2"], "use tree_width 1"),
        (["--batch_size=0"], "--batch_size must be at least 1, got 0"),
    ],
)
def test_sweep_refuses_what_it_cannot_compare(lit_kvpred, words, message):
    result = lit_kvpred("sweep", "/nowhere", *words)
    assert result.returncode == 1
    assert message in error_line(result)
    assert result.stdout == ""


def test_a_fit_measures_sirius_if_its_correction_has_a_draft(
    lit_kvpred, fit_words, documents_folder, tmp_path
):
    config = tmp_path / "sirius.yaml"
    config.write_text(
        f"""
evaluation:
  prompts:
    class_path: lit_kvpred.datamodules.PromptTaskDataModule
    init_args:
      data: {{next_line: {documents_folder}}}
      prompt_tokens: [96]
      limit: 1
      max_new_tokens: 60
      validation_share: 0.15
  correction:
    period: 4
    draft:
      class_path: lit_kvpred.sirius.sparsity.CSparse
      init_args: {{keep: 0.5}}
"""
    )
    run = tmp_path / "run"
    command, tiny, *words = fit_words(run, "--trainer.max_epochs=1")
    words = [word for word in words if not word.startswith("--evaluation.prompts")]
    result = lit_kvpred(command, tiny, f"--config={config}", *words)
    assert result.returncode == 0, result.stderr
    (record,) = (json.loads(line) for line in (run / "evaluation.jsonl").open())
    assert {"sparse", "sirius", "sirius_catch_up"} <= record["accuracy"]["next_line/96"].keys()
    assert record["correction"]["draft_keep"] == 0.5
    assert "Sirius after catch-up" in (run / "report.html").read_text()
    draft = yaml.safe_load((run / "config.yaml").read_text())["evaluation"]["correction"]["draft"]
    assert draft["init_args"] == {"keep": 0.5}
    # The run's own configuration brings the draft back.
    words = ("--trainer.enable_progress_bar=false", "--trainer.logger=false")
    assert lit_kvpred("validate", f"--run={run}", *words).returncode == 0
    assert lit_kvpred("predict", f"--run={run}", *words).returncode == 0
    answers = [json.loads(line) for line in (run / "predictions.jsonl").open()]
    assert {"predicted", "corrected", "sirius_catch_up"} < answers[0].keys()


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (
            {"class_path": "lit_kvpred.sirius.sparsity.CSparse", "init_args": {"keep": 2}},
            "error: sparsity keep must be a number above 0 and at most 1, got 2",
        ),
        (
            {"class_path": "lit_kvpred.sirius.sparsity.CSparse", "init_args": {"kep": 1}},
            "evaluation.correction.draft has no setting 'kep'; check the name",
        ),
        (
            {"class_path": "lit_kvpred.Correction"},
            "{keep: SHARE}, got {'class_path': 'lit_kvpred.Correction'",
        ),
        ("csparse", 'got "csparse"'),
    ],
)
def test_a_draft_that_is_none_is_named(lit_kvpred, fit_words, tmp_path, draft, message):
    words = fit_words(tmp_path / "run", f"--evaluation.correction.draft={json.dumps(draft)}")
    result = lit_kvpred(*words)
    assert result.returncode in (1, 2)
    assert message in error_line(result)


@pytest.fixture(scope="module")
def prefix_run(lit_kvpred, fit_words, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prefix") / "run"
    result = lit_kvpred(
        *fit_words(
            folder,
            "--model.auxiliary=prefix",
            "--model.keep=2",
            "--model.exact_tail=2",
            "--model.auxiliary_weight=0",
            "--trainer.max_epochs=1",
            "--evaluation.timing_prompt_tokens=[16]",
            "--evaluation.timing_repeats=1",
            "--trainer.enable_progress_bar=false",
        )
    )
    assert result.returncode == 0, result.stderr
    return folder


def test_a_prefix_run_trains_and_exports_projections_alone(lit_kvpred, prefix_run):
    facts = json.loads((prefix_run / "run.json").read_text())
    assert facts["auxiliary"] == {"kind": "prefix", "depth": 2, "parameters": 0, "layers": 2}
    assert facts["predictor"]["features"] == "hidden"
    assert not (prefix_run / "artefact" / "auxiliary").exists()
    records = [json.loads(line) for line in (prefix_run / "evaluation.jsonl").open()]
    assert "cross_entropy_auxiliary" not in records[-1]["text"]
    assert "auxiliary" not in records[-1]["timing"][0]
    assert records[-1]["text"]["consistency_keys"][:2] == [0.0, 0.0]
    assert min(records[-1]["text"]["consistency_keys"][2:]) > 0
    words = ("generate", str(prefix_run / "artefact"), "--prompt", "def f(", "--max_new_tokens=5")
    for more in ("--threshold=2", "--slice_rows=1"):
        answer = lit_kvpred(*words, more)
        assert answer.returncode == 0, answer.stderr
    resumed = lit_kvpred("validate", f"--run={prefix_run}", "--trainer.enable_progress_bar=false")
    assert resumed.returncode == 0, resumed.stderr


def test_a_prefix_has_no_loss_of_its_own(lit_kvpred, fit_words, tmp_path):
    words = fit_words(tmp_path / "run", "--model.auxiliary=prefix", "--model.auxiliary_weight=1")
    result = lit_kvpred(*words)
    assert result.returncode == 1
    assert "set auxiliary_weight to 0" in result.stderr


def test_report_again_and_side_by_side(lit_kvpred, run):
    before = (run / "report.html").stat().st_mtime_ns
    assert lit_kvpred("report", str(run)).returncode == 0
    result = lit_kvpred("report", str(run), str(run))
    assert result.returncode == 0, result.stderr
    assert (run / "report.html").stat().st_mtime_ns > before


@pytest.mark.parametrize(
    "command",
    [
        "prepare",
        "fit",
        "validate",
        "test",
        "predict",
        "generate",
        "bench",
        "quality",
        "sweep",
        "offload",
        "report",
    ],
)
def test_every_command_has_help(lit_kvpred, command):
    result = lit_kvpred(command, "--help")
    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout


def test_top_level_help_and_version_import_no_torch(environment):
    code = (
        "import sys; from lit_kvpred.cli import main; "
        "codes = [main(['--help']), main(['--version'])]; "
        "assert codes == [0, 0]; "
        "heavy = {'torch', 'lightning', 'transformers', 'jsonargparse'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


def test_packaged_configurations_are_complete(lit_kvpred):
    assert {"tiny", "smollm2-135m"} <= packaged_configs().keys()
    for name in packaged_configs():
        result = lit_kvpred("fit", "--config", name, "--print_config")
        assert result.returncode == 0, result.stderr
        assert yaml.safe_load(result.stdout)["model"]["base"].startswith("checkpoints/models/")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--draft_keep=.4"], "--draft_keep needs sparse drafts; add --draft csparse"),
        (["--tree_width=2"], "--tree_width needs sparse drafts; add --draft csparse"),
        (["--corrected=false", "--draft=csparse"], "need correction; leave out --corrected false"),
        (["--corrected=false", "--acceptance=lossless"], "leave out --corrected false"),
    ],
)
def test_generate_refuses_options_without_effect(lit_kvpred, run, words, message):
    result = lit_kvpred("generate", str(run / "artefact"), "--prompt=a", *words)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_bench_refuses_options_without_effect(lit_kvpred, run):
    words = ["--draft_keep=.4", "--tree_width=2"]
    result = lit_kvpred("bench", str(run / "artefact"), *words)
    assert result.returncode == 1
    assert "--draft_keep and --tree_width need sparse drafts; add --draft" in result.stderr


def test_a_prompt_file_in_another_encoding_is_named(lit_kvpred, run, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes("naïve".encode("latin-1"))
    result = lit_kvpred("generate", str(run / "artefact"), f"--prompt_file={prompt}")
    assert result.returncode == 1
    assert f"{prompt} is no UTF-8 text (byte 2)" in result.stderr


@pytest.mark.parametrize("given", ["option", "standard input"])
def test_a_prompt_in_another_encoding_is_named(lit_kvpred, run, given):
    # What Python makes of a byte of latin-1 on a command line.
    text = "na\udcefve"
    words = ["--prompt", text] if given == "option" else []
    result = lit_kvpred("generate", str(run / "artefact"), *words, stdin=text)
    assert result.returncode == 1
    name = "--prompt" if given == "option" else given
    assert f"the prompt in {name} is no UTF-8 text (character 2)" in result.stderr


@pytest.mark.parametrize("option", ["--periods", "--thresholds", "--tasks", "--policies"])
def test_an_empty_list_is_no_choice(lit_kvpred, run, option):
    result = lit_kvpred("sweep", str(run / "artefact"), option, "[]")
    assert result.returncode == 1
    assert f"{option} is an empty list; give a value or leave it out" in result.stderr
