"""`lit-kvpred generate`: a trained artefact at work on a prompt, streaming."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Generator
from typing import Any, Literal

from lit_kvpred.cli.arguments import call_with_arguments, listed
from lit_kvpred.cli.draft_options import chosen_draft, require_draft
from lit_kvpred.cli.prompt_text import read_prompt, require_unicode
from lit_kvpred.errors import ConfigurationError
from lit_kvpred.sirius.correction import Acceptance, StreamingPolicy


def generate(
    artefact: str,
    prompt: str | None = None,
    prompt_file: str | None = None,
    base: str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: list[str] | str | None = None,
    corrected: bool = True,
    period: int = 16,
    threshold: float = 0.1,
    policy: StreamingPolicy = "hold",
    slice_rows: int | Literal["auto"] | None = None,
    tpot_budget: float = 3.0,
    draft: Literal["csparse", "fsparse"] | None = None,
    draft_keep: float | None = None,
    tree_width: int | None = None,
    acceptance: Acceptance = "threshold",
    chat: bool = False,
    release_auxiliary: bool = False,
    json_events: bool = False,
) -> None:
    """Answer one prompt from its predicted cache.

    Args:
        artefact: Folder that a run exported (RUN/artefact) or save_pretrained wrote.
        prompt: The prompt; without it and without prompt_file, standard input is read.
        prompt_file: File that holds the prompt.
        base: Folder or hub id of the base, where it is not at the place the artefact names.
        max_new_tokens: Longest answer.
        temperature: 0 is greedy.
        top_k: Draw among the k likeliest tokens; 0 means all.
        top_p: Draw among the likeliest tokens of this total probability.
        seed: Of the drawing.
        stop: Text, or list of texts, that end the answer.
        corrected: Compute the exact prompt and judge the draft on it.
        period: Tokens drafted on the predicted prompt, and of a sparse draft's periods.
        threshold: Least probability of an accepted draft token; above 1 every draft is rejected
            and the text is the base's own greedy text.
        policy: What is shown before the draft is judged.
        slice_rows: Exact prompt rows that ride on each decode step, instead of all at once after
            `period` tokens; auto chooses the cheapest number within tpot_budget.
        tpot_budget: Longest decode step with a slice, relative to one without.
        draft: Once the prompt is exact, write in periods: sparse steps, then one pass of the base
            that judges and rewrites them.
        draft_keep: Share of the feed-forward neurons that such steps use; .5 by default.
        tree_width: Sequences drafted together in a period; the one of which most is accepted stays.
            1 by default.
        acceptance: What is accepted of a draft; lossless is speculative decoding's rule, by which
            a greedy text is the base's own whatever the threshold.
        chat: Wrap the prompt in the base's chat template.
        release_auxiliary: Put the auxiliary's weights on disk while the base decodes.
        json_events: Print one JSON object per event and the statistics last.
    """
    from lit_kvpred.generation.sampling import Sampling
    from lit_kvpred.model.kv_prediction import KVPredictionModel
    from lit_kvpred.model.loading import load_tokenizer
    from lit_kvpred.sirius.correction import Correction

    if prompt is not None and prompt_file is not None:
        raise ConfigurationError("--prompt and --prompt_file exclude each other; leave one out")
    text = prompt
    if text is None:
        text = read_prompt(prompt_file)
    else:
        require_unicode(text, "--prompt")
    require_draft(draft, draft_keep=draft_keep, tree_width=tree_width)
    if not corrected and (draft is not None or acceptance != "threshold"):
        raise ConfigurationError(
            "--draft and --acceptance need correction; leave out --corrected false"
        )
    correction = None
    if corrected:
        correction = Correction(
            period,
            threshold,
            policy=policy,
            slice_rows=slice_rows,
            tpot_budget=tpot_budget,
            draft=chosen_draft(draft, draft_keep),
            tree_width=1 if tree_width is None else tree_width,
            acceptance=acceptance,
        )
    sampling = Sampling(temperature, top_k, top_p, seed)
    model = KVPredictionModel.from_pretrained(artefact, base)
    tokenizer = load_tokenizer(base or model.base.config.name_or_path)
    if chat:
        if tokenizer.chat_template is None:
            raise ConfigurationError("this base has no chat template; leave out --chat")
        messages = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    events = model.stream(
        ids,
        correction=correction,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_strings=listed(stop, []),
        tokenizer=tokenizer,
        release_auxiliary=release_auxiliary,
    )
    if json_events:
        _print_events(events, tokenizer)
    else:
        _print_text(events, tokenizer)


def _print_events(events: Generator[Any, None, Any], tokenizer: Any) -> None:
    from lit_kvpred.generation.events import TokenEvent, drain

    def follow(event: Any) -> None:
        text = {}
        if isinstance(event, TokenEvent):
            text = {"text": tokenizer.decode([event.token])}
        _line(type(event).__name__, dataclasses.asdict(event) | text)

    output = drain(events, follow)
    _line("GenerationStats", dataclasses.asdict(output.stats))


def _line(kind: str, content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": kind, **content}) + "\n")
    sys.stdout.flush()


def _print_text(events: Generator[Any, None, Any], tokenizer: Any) -> None:
    """Write the answer as it comes; in a terminal taken-back tokens are redrawn."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from lit_kvpred.generation.events import RetractionEvent, TokenEvent, drain

    shown: list[int] = []
    console = Console(highlight=False)

    def text() -> str:
        return tokenizer.decode(shown, skip_special_tokens=True)

    def follow(event: Any) -> None:
        if isinstance(event, TokenEvent):
            shown.append(event.token)
        elif isinstance(event, RetractionEvent):
            del shown[-event.count :]

    if not console.is_terminal:
        drain(events, follow)
        sys.stdout.write(text() + "\n")
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:

        def redraw(event: Any) -> None:
            follow(event)
            live.update(Text(text()), refresh=True)

        drain(events, redraw)


def run(words: list[str]) -> None:
    """Run the command with its name and arguments."""
    call_with_arguments(generate, words)
