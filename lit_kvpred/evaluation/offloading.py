"""A base that does not fit: in memory, streamed, and streamed with sparse drafts (Sirius 5.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lit_kvpred.evaluation.limited_run import LimitedRun

SYSTEMS = ("resident", "resident_limited", "streamed", "sirius_streamed")


def measure_offloading(
    base: str,
    prompt: list[int],
    *,
    new_tokens: int = 64,
    keep: float = 0.5,
    period: int = 16,
    threshold: float = 0.1,
    limit: int | None = None,
    threads: int = 1,
    dtype: str = "auto",
) -> list[dict[str, Any]]:
    """Answer one prompt in four ways, each in a process of its own.

    Args:
        base: Folder or hub id.
        prompt: Token ids.
        new_tokens: Tokens of each answer, at least 2; end-of-sequence tokens don't end it.
        keep: Share of the feed-forward neurons that drafts use.
        period: Tokens from one check of theirs to the next.
        threshold: Least probability of an accepted drafted token.
        limit: Bytes of private memory of all but the first; None puts it halfway between what the
            resident base was seen to need and what remains of that with the draft's neurons alone.
        threads: Of torch.
        dtype: Type to compute in.

    Returns:
        A record for each of `SYSTEMS`: ``system``, ``limit_bytes``, ``prompt_tokens``,
        ``new_tokens``, ``threads``; what `LimitedRun.measure` tells, and where the run fits also
        ``bytes_per_token``, read for each token behind the first without what was gathered once;
        ``predicted_bytes_per_token``, all feed-forward weights a token, or by the advance of a
        period; ``same_text``, whether the answer is the streamed dense base's, and
        ``strict_same_text``, the same for drafts that are all rejected (None without drafts).

    Raises:
        KVPredictionError: If a process fails for another reason than memory.
    """
    resident = LimitedRun(
        base, dtype, prompt, new_tokens, threads, False, None, period, threshold, None
    )
    records = [resident.measure()]
    streamed = replace(resident, streamed=True)
    if limit is None:
        limit = _halfway(records[0], keep, replace(streamed, new_tokens=2).measure())
    limited = [
        replace(resident, limit=limit),
        replace(streamed, limit=limit),
        replace(streamed, limit=limit, keep=keep),
    ]
    records += [run.measure() for run in limited]
    reference = next((r["answer"] for r in (records[2], records[0]) if r["fits"]), None)
    return [
        {
            "system": system,
            "limit_bytes": run.limit,
            "prompt_tokens": len(prompt),
            "new_tokens": new_tokens,
            "threads": threads,
        }
        | record
        | (_derived(record, reference, new_tokens) if record["fits"] else {})
        for system, run, record in zip(SYSTEMS, [resident, *limited], records, strict=True)
    ]


def _halfway(resident: dict[str, Any], keep: float, streamed: dict[str, Any]) -> int | None:
    """A limit under which the resident base should not fit, and one with drafts should."""
    whole, rest = resident.get("reserved_bytes"), streamed.get("reserved_bytes")
    if whole is None or rest is None:
        return None
    return int(whole - (1 - keep) * (whole - rest) / 2)


def _derived(
    record: dict[str, Any], reference: list[int] | None, new_tokens: int
) -> dict[str, Any]:
    whole, advance = record["feed_forward_bytes"], record["aal"]
    drafted = record["strict_answer"] is not None
    predicted = whole
    if drafted:
        predicted = None if advance is None else whole / advance
    return {
        "bytes_per_token": record["decode_bytes"] / (new_tokens - 1),
        "predicted_bytes_per_token": predicted,
        "same_text": None if reference is None else record["answer"] == reference,
        "strict_same_text": record["strict_answer"] == reference if drafted else None,
    }
