"""Packaged configurations, one a use case, complete and commented."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from lit_kvpred.errors import ConfigurationError


def packaged_configs() -> dict[str, Path]:
    """Paths of the packaged configurations by name."""
    folder = Path(str(files(__package__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """The file behind ``--config``: an existing path or the name of a packaged configuration.

    Raises:
        ConfigurationError: If it is neither.
    """
    if Path(name).is_file():
        return Path(name)
    packaged = packaged_configs()
    if name not in packaged:
        raise ConfigurationError(
            f"there is no configuration '{name}': neither a file nor one of {', '.join(packaged)}"
        )
    return packaged[name]
