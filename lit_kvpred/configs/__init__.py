"""Packaged configurations, one a use case, complete and commented."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from lit_kvpred.errors import ConfigurationError
from lit_kvpred.json_text import parse_json

_GROUPS = ("model", "data", "evaluation", "evaluation.correction", "trainer")


def packaged_configs() -> dict[str, Path]:
    """Paths of the packaged configurations by name."""
    folder = Path(str(files(__package__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str) -> Path:
    """The file behind ``--config``: an existing path or the name of a packaged configuration.

    Raises:
        ConfigurationError: If it is neither, or damaged.
    """
    if Path(name).is_file():
        require_config(Path(name))
        return Path(name)
    packaged = packaged_configs()
    if name not in packaged:
        raise ConfigurationError(
            f"there is no configuration '{name}': neither a file nor one of {', '.join(packaged)}"
        )
    return packaged[name]


def require_config(file: Path) -> None:
    """Refuse a file that holds no settings, before they are looked at one by one.

    Raises:
        ConfigurationError: If it can't be read, is no YAML, or a group of settings is none.
    """
    try:
        content = _parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(file, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unusable(file, f"byte {error.start} is not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise _unusable(file, f"{line}{error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise _unusable(file, first) from error
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise _unusable(file, f"it holds {found} where settings are expected")
    for group in _GROUPS:
        settings: Any = content
        for name in group.split("."):
            settings = settings.get(name) if isinstance(settings, dict) else None
        # Text may be the path of a file with these settings.
        if settings and not isinstance(settings, dict | str):
            raise _unusable(file, f"{group} must be a group of settings, got {settings!r:.60}")


def _parse(text: str) -> Any:
    """The content as the command line reads it, which takes JSON that is no YAML (tabs) as well."""
    if text.lstrip().startswith("{"):
        try:
            return parse_json(text)
        except ValueError:
            pass
    return get_loader("yaml")(text)


def _unusable(file: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the configuration {file} can't be used ({why}); mend it, or give another with --config"
    )
