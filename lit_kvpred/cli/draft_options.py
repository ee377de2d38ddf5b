"""Options about sparse drafts, which several commands share."""

from __future__ import annotations

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.sirius.sparsity import DRAFTS, Sparsity

DEFAULT_KEEP = 0.5


def chosen_draft(draft: str | None, keep: float | None) -> Sparsity | None:
    """The draft that ``--draft`` names; None where it is not given."""
    return None if draft is None else DRAFTS[draft](DEFAULT_KEEP if keep is None else keep)


def require_draft(draft: str | None, **options: object) -> None:
    """Refuse options that only drafts can follow.

    Args:
        draft: What ``--draft`` was given.
        options: By name what was given; None where an option was left out.

    Raises:
        ConfigurationError: If one is given without a draft.
    """
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if draft is None and given:
        raise ConfigurationError(
            f"{' and '.join(given)} {'needs' if len(given) == 1 else 'need'} sparse drafts; add "
            "--draft csparse or --draft fsparse"
        )
