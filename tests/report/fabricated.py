"""Run folders such as training leaves behind, made up by arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

TOKENS_A_STEP = 1024
LAYERS = 30

FACTS: dict[str, Any] = {
    "base": {
        "source": "HuggingFaceTB/SmolLM2-135M",
        "revision": "93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
        "fingerprint": "sha256:5d1c07a7c2f04b0e9f1b8a52c9ad6f1b3f0a7d5e2c4b6a8990e1f2d3c4b5a697",
        "family": "llama",
        "parameters": 134515008,
        "layers": LAYERS,
        "dtype": "float32",
    },
    "auxiliary": {
        "kind": "prefix",
        "source": None,
        "kept": list(range(15)),
        "parameters": 0,
        "layers": 15,
    },
    "predictor": {
        "parameters": 8301600,
        "features": "hidden",
        "init": "least_squares",
        "layer_map": [*range(15), *[14] * 15],
    },
    "objective": {"base_weight": 1.0, "distillation_weight": 1.0, "consistency_weight": 0.0333},
    "data": {"source": "standard library sources", "sequence_length": 1024, "packed": True},
    "trainable_parameters": 8301600,
    "seed": 1234,
    "versions": {"torch": "2.13.0", "lightning": "2.6.6", "transformers": "5.24.0"},
    "threads": 2,
    "device": "cpu",
    "precision": "32-true",
}

SAMPLES: list[dict[str, str]] = [
    {
        "task": "next_line/256",
        "prompt": "import os\n\n\ndef walk(top):\n" + "    # context\n" * 40 + "    for name in",
        "answer": " sorted(os.listdir(top)):",
        "base": " sorted(os.listdir(top)):",
        "predicted": " os.listdir(top):",
        "corrected": " sorted(os.listdir(top)):",
    },
    {
        "task": "next_line/256",
        "prompt": "def escape(text):\n\treturn (text\n\t\t.replace('&', '&amp;')\n",
        "answer": "\t\t.replace('<', '&lt;')",
        "base": "\t\t.replace('<', '&lt;')\n\t\t.replace('|', '`')  ",
        "predicted": "",
        "corrected": "<script>alert('not run')</script>\x1b[31m \u202eabc",
    },
    {
        "task": "gsm8k",
        "prompt": "Question: Ann has 3 boxes of 12 pencils. How many pencils is that?\nAnswer:",
        "answer": "36",
        "base": " 3 * 12 = 36. #### 36",
        "predicted": " 3 * 12 = 36. #### 36",
        "corrected": " 3 * 12 = 36. #### 36",
    },
]


def quartiles(median: float) -> dict[str, float]:
    return {"median": median, "q25": 0.97 * median, "q75": 1.05 * median, "n": 5}


def text_record(progress: float, final_kl: float) -> dict[str, Any]:
    decay = math.exp(-4 * progress)
    kl = final_kl * (1 + 9 * decay)
    layers = [0.0] * 15 + [0.05 + 0.012 * layer for layer in range(LAYERS - 15)]
    return {
        "agreement": max(0.06, 0.92 - 0.45 * kl**0.8),
        "agreement_first8": max(0.04, 0.84 - 0.45 * kl**0.8),
        "kl": kl,
        "cross_entropy": 1.77 + 0.8 * kl,
        "cross_entropy_base": 1.77,
        "cross_entropy_gap": 0.8 * kl,
        "cross_entropy_auxiliary": 4.1 - 0.2 * progress,
        "consistency_keys": [value * (1 + decay) for value in layers],
        "consistency_values": [1.6 * value * (1 + decay) for value in layers],
        "tokens": 8192,
    }


def timing_record(prompt_tokens: int) -> dict[str, Any]:
    base = 0.0006 * prompt_tokens + 0.02
    predicted = 0.00032 * prompt_tokens + 0.03
    ratio = 1.93
    flops = 2 * 134515008 * prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "batch_size": 1,
        "threads": 2,
        "dtype": "float32",
        "base": quartiles(base),
        "kv_prediction": quartiles(predicted),
        "auxiliary": quartiles(0.9 * predicted),
        "speedup": base / predicted,
        "flops": {
            "base": flops,
            "kv_prediction": flops / ratio,
            "ratio": ratio,
            "published_ratio": 2.0,
        },
        "speedup_over_ratio": base / predicted / ratio,
        "tail": quartiles(0.03),
        "reachable_speedup": base / (base / ratio + 0.03),
        "speedup_over_reachable": base / predicted / (base / (base / ratio + 0.03)),
    }


def accuracy_record(progress: float) -> dict[str, Any]:
    return {
        "next_line/256": {
            "metric": "exact_match",
            "n": 64,
            "base": 0.53125,
            "predicted": 0.25 + 0.1875 * progress,
            "corrected": 0.4375 + 0.078125 * progress,
            "auxiliary": 0.03125,
            "edit_similarity": {
                "base": 0.81,
                "predicted": 0.6 + 0.15 * progress,
                "corrected": 0.79,
                "auxiliary": 0.31,
            },
        },
        "gsm8k": {
            "metric": "last_number",
            "n": 16,
            "base": 0.25,
            "predicted": 0.0625 + 0.125 * progress,
            "corrected": 0.25,
            "auxiliary": 0.0,
        },
    }


def evaluation(step: int, last_step: int, final_kl: float, stage: str = "fit") -> dict[str, Any]:
    progress = step / last_step
    return {
        "stage": stage,
        "epoch": round(6 * progress),
        "global_step": step,
        "tokens_seen": step * TOKENS_A_STEP,
        "wall_s": 12.0 + 3.2 * step,
        "text": text_record(progress, final_kl),
        "timing": [timing_record(prompt) for prompt in (128, 256, 512, 1024)],
        "accuracy": accuracy_record(progress),
        "correction": {
            "period": 16,
            "threshold": 0.1,
            "temperature": 0.6,
            "policy": "hold",
            "slice_rows": None,
            "tpot_budget": 3.0,
            "draft": None,
            "draft_keep": None,
            "rollback": True,
            "systems": {"corrected": checks_record(9.0 + 3 * progress, 0.4 - 0.2 * progress)},
        },
        "samples": SAMPLES,
    }


def checks_record(aal: float, retraction_rate: float) -> dict[str, Any]:
    return {
        "drafted": 160,
        "accepted_rate": 1 - retraction_rate,
        "retraction_rate": retraction_rate,
        "unrecoverable_rate": 0.0,
        "aal": aal,
        "effective_density": None,
        "rejected_at": None,
        "time_to_exact_s": quartiles(0.9),
    }


def sparse_evaluation(step: int, last_step: int) -> dict[str, Any]:
    """An evaluation whose correction has a sparse draft."""
    record = evaluation(step, last_step, 0.095)
    progress = step / last_step
    for entry in record["accuracy"].values():
        for scores in (entry, entry.get("edit_similarity", {})):
            if "base" in scores:
                scores["sparse"] = 0.6 * scores["base"]
                scores["sirius"] = 0.95 * scores["base"]
                scores["sirius_catch_up"] = (0.85 + 0.1 * progress) * scores["base"]
    correction = record["correction"]
    correction |= {"draft": "csparse", "draft_keep": 0.5}
    sparse = {"effective_density": 0.712, "rejected_at": [9, 5, 6, 4, 3, 3, 2, 4, 1, 2, 0, 1, 2]}
    correction["systems"] |= {
        "sirius": checks_record(13.4, 0.2) | sparse | {"time_to_exact_s": quartiles(0.6)},
        "sirius_catch_up": checks_record(12.1 + progress, 0.25) | sparse,
    }
    texts = {"sparse": " 3 + 12", "sirius": " 3 * 12 = 36", "sirius_catch_up": " 36"}
    record["samples"] = [sample | texts for sample in SAMPLES]
    return record


def sweep_record(system: str, task: str = "next_line", **measured: Any) -> dict[str, Any]:
    """A row of a sweep on exact prompts; unnamed measures are None."""
    names = (
        "policy", "period", "threshold", "temperature", "slice_rows", "tpot_budget", "draft",
        "acceptance", "tree_width", "kv_rewriting", "rollback", "interleave", "draft_keep",
        "same_first_token", "drafted", "accepted_rate", "retraction_rate", "unrecoverable_rate",
        "aal", "effective_density", "rejected_at", "alpha", "expected_aal", "expected_density",
    )  # fmt: skip
    row = {"task": task, "metric": "exact", "new_tokens": 32, "system": system, "answers": 100}
    row |= dict.fromkeys(names) | {"accuracy": 0.5, "same_text": 0.5, "same_tokens": 0.5}
    if system not in ("base", "sparse"):
        row |= {
            "policy": "retract", "period": 8, "threshold": 0.1, "temperature": 0.6,
            "acceptance": "threshold", "tree_width": 1, "tpot_budget": 3.0,
            "kv_rewriting": True, "rollback": True, "interleave": True,
            "accepted_rate": 0.9, "retraction_rate": 0.1, "unrecoverable_rate": 0.0,
        }  # fmt: skip
    if system != "base":
        row |= {"draft": "csparse", "draft_keep": 0.5}
    return row | measured


def sweep_records(task: str = "next_line") -> list[dict[str, Any]]:
    """Two shares of neurons over four thresholds, with the references."""
    rows = [
        sweep_record(
            "base", task, accuracy=0.48, same_text=1.0, same_tokens=1.0, effective_density=1.0
        )
    ]
    for keep, density in ((0.5, 0.71), (0.3, 0.6)):
        rows += [
            sweep_record("sparse", task, accuracy=keep / 2, same_text=keep, same_tokens=keep + 0.1,
                         effective_density=density, draft_keep=keep),
            sweep_record("speculative", task, acceptance="lossless", accuracy=0.48, same_text=1.0,
                         same_tokens=1.0, aal=4.4, effective_density=(7 * density + 1) / 4.4,
                         draft_keep=keep, alpha=0.8, expected_aal=4.16,
                         expected_density=(7 * density + 1) / 4.16),
        ]  # fmt: skip
        for threshold in (0.05, 0.1, 0.3, 1.1):
            share = min(1.0, keep + threshold)
            aal = 8 - 6 * min(1.0, threshold)
            rows.append(
                sweep_record("sirius", task, threshold=threshold, draft_keep=keep,
                             accuracy=0.25 + 0.23 * share, same_text=share, same_tokens=share,
                             aal=aal, effective_density=(7 * density + 1) / aal)
            )  # fmt: skip
    return rows


def metrics_csv(last_step: int, final_kl: float) -> str:
    lines = [
        "epoch,lr,step,tokens_seen,train/base_loss,train/distillation_loss,train/loss,val/loss"
    ]
    for step in range(5, last_step + 1, 5):
        kl = final_kl * (1 + 9 * math.exp(-4 * step / last_step)) * (1 + 0.2 * math.sin(step))
        seen = step * TOKENS_A_STEP
        lines.append(f"0,0.0003,{step},{seen},{1.9 + 0.8 * kl},{kl},{1.9 + 1.8 * kl},")
        if step % (last_step // 6) == 0:
            lines.append(f"0,,{step},,,,,{1.85 + 1.7 * kl}")
    return "\n".join(lines) + "\n"


def write_run(folder: Path, *, last_step: int = 300, final_kl: float = 0.095) -> Path:
    """A run folder with everything in it, of seven evaluations."""
    folder.mkdir(parents=True)
    steps = range(0, last_step + 1, last_step // 6)
    records = [evaluation(step, last_step, final_kl) for step in steps]
    (folder / "run.json").write_text(json.dumps(FACTS), encoding="utf-8")
    (folder / "evaluation.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
    )
    (folder / "metrics.csv").write_text(metrics_csv(last_step, final_kl), encoding="utf-8")
    (folder / "config.yaml").write_text("seed: 1234\nmodel:\n  kind: prefix\n", encoding="utf-8")
    return folder
