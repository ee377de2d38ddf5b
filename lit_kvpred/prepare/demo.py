"""Small real language models, trained on the spot in about a minute and without a download.

They read and write Python: their text is the standard library of the running interpreter. There
is a base, and a smaller sibling with the same tokenizer as its canonical auxiliary. What makes a
minute enough is where they start: token vectors come from the text's own neighbour statistics, so
that rare tokens stand next to their likes before the first step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.model.loading import quiet_transformers
from lit_kvpred.prepare.convert import announce, holds, staged_folder, write_record
from lit_kvpred.prepare.demo_corpus import demo_documents, token_row, train_tokenizer

_VOCABULARY = 2048

_TOKENS_PER_STEP = 512
# Short windows first: they cost less, and what they teach is needed before anything longer is.
_WINDOWS = (128, 128, 256, 512)
_PEAK_RATE = 4e-3
_WARM_UP = 20
_VECTOR_SCALE = 0.08
_DTYPE = "float32"
# Counts the changes of what is above, so that a folder made before one is not taken for current.
_RECIPE = "demo 1"
DEFAULT_STEPS = 1000


class DemoSize(NamedTuple):
    """Depth and hidden width of a demo model."""

    layers: int
    width: int


DEMO_SIZES = {"demo": DemoSize(6, 128), "demo-small": DemoSize(3, 64)}


def prepare_demo(
    out: str | Path,
    *,
    seed: int = 0,
    steps: int = DEFAULT_STEPS,
    size: DemoSize = DEMO_SIZES["demo"],
    report: Callable[[str], None] = announce,
) -> Path:
    """Trains a demo model and saves it as a safetensors folder.

    A Llama, by default with 6 layers and 1.4 M parameters, over a byte-level vocabulary of 2048
    tokens, trained on the documents that `split_of` puts into `train`. The same seed, steps, text
    and number of threads give the same bits.

    Args:
        out: Folder to make. It may exist if it is empty, or if it holds exactly this model already.
        seed: Seed of the initial weights and of the order of the text.
        steps: Optimizer steps of 512 tokens each.
        size: Depth and width.
        report: Receives the lines of progress.

    Returns:
        The folder.

    Raises:
        ConfigurationError: `steps` is not positive.
        BaseModelError: `out` holds something else.
        DataError: The interpreter comes without sources.
    """
    if steps < 1:
        raise ConfigurationError(f"the demo needs at least one step, got {steps}")
    out = Path(out).expanduser()
    documents = demo_documents("train")
    recipe = "\0".join([f"{_RECIPE}, {size}, seed {seed}, {steps} steps", *documents])
    digest = hashlib.sha256(recipe.encode("utf-8")).hexdigest()
    if holds(out, digest, _DTYPE):
        report(f"{out} already holds this model")
        return out
    with staged_folder(out) as stage, torch.random.fork_rng(devices=[]):
        report(f"reading {len(documents)} files of the standard library")
        tokenizer = train_tokenizer(documents, _VOCABULARY)
        tokens = token_row(tokenizer, documents)
        torch.manual_seed(seed)
        model = _new_model(size, tokens, len(tokenizer), tokenizer.eos_token_id)
        parameters = sum(p.numel() for p in model.parameters())
        report(f"training {parameters / 1e6:.1f} M parameters on {len(tokens) / 1e6:.1f} M tokens")
        _train(model, tokens, steps)
        held_out = token_row(tokenizer, demo_documents("validation"))
        report(f"held-out loss {_held_out_loss(model, held_out):.2f} nats per token")
        with quiet_transformers():
            model.save_pretrained(stage)
            tokenizer.save_pretrained(stage)
        write_record(stage, digest, _DTYPE)
    return out


def _new_model(size: DemoSize, tokens: Tensor, vocabulary: int, separator: int) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=size.width,
            intermediate_size=3 * size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=separator,
            eos_token_id=separator,
            pad_token_id=separator,
        )
    )
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(
            _neighbour_vectors(tokens, vocabulary, size.width)
        )
    return model


def _neighbour_vectors(tokens: Tensor, vocabulary: int, width: int) -> Tensor:
    # Positive pointwise mutual information with the next and with the previous token, reduced to
    # the model's width. Returns (vocabulary, width).
    pairs = tokens[:-1] * vocabulary + tokens[1:]
    joint = torch.bincount(pairs, minlength=vocabulary**2).view(vocabulary, vocabulary) / len(pairs)
    apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    information = (joint / apart.clamp_min(1e-20)).clamp_min(1).log()
    both_sides = torch.cat([information, information.T], dim=1)
    directions, strengths, _ = torch.svd_lowrank(both_sides, q=width, niter=4)
    vectors = directions * strengths.sqrt()
    # Rare tokens would start with hardly any length, and frequent ones with too much.
    lengths = vectors.std(dim=1, keepdim=True) + 0.1 * vectors.std()
    return _VECTOR_SCALE * vectors / lengths


def _train(model: LlamaForCausalLM, tokens: Tensor, steps: int) -> None:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=_PEAK_RATE, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / _WARM_UP, 0.51 + 0.49 * math.cos(math.pi * step / steps)),
    )
    model.train()
    with _progress() as progress:
        bar = progress.add_task("loss    -", total=steps)
        for batch in _batches(tokens, steps):
            loss = _loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress.update(bar, advance=1, description=f"loss {loss.item():.2f}")
    model.eval()


def _batches(tokens: Tensor, steps: int) -> Iterator[Tensor]:
    for step in range(steps):
        window = _WINDOWS[step * len(_WINDOWS) // steps]
        starts = torch.randint(len(tokens) - window, (_TOKENS_PER_STEP // window, 1))
        yield tokens[starts + torch.arange(window + 1)]


def _loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@torch.inference_mode()
def _held_out_loss(model: LlamaForCausalLM, tokens: Tensor) -> float:
    # Windows spread evenly over the text.
    window = _WINDOWS[-1] + 1
    starts = torch.linspace(0, len(tokens) - window, 16).long()[:, None]
    rows = tokens[starts + torch.arange(window)]
    return sum(_loss(model, row).item() for row in rows.split(4)) / 4


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} steps"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
