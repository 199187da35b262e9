"""Configs in a TOML file, with the line of each."""

import re
import tomllib
from collections.abc import Mapping

from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs
from kbroker.config.values import ConfigError

# tomllib's time grows with the square of the number of parts of a dotted key.
_DEEP_KEY = re.compile(r"(?<![\"'A-Za-z0-9_-])(?:[\"'A-Za-z0-9_-]++[ \t]*+\.[ \t]*+){64}")
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")


def parse_toml_file(path: str, data: bytes) -> StaticConfigs:
    """Parse a TOML file; nested tables are parts of dotted names. Raises ConfigError."""
    try:
        text = data.decode()
        if deep := _DEEP_KEY.search(text):
            raise ValueError(f"the key {deep[0][:20]}... has too many parts")
        texts = flatten(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    lines = _key_lines(text)
    return {
        name: StaticConfig(value, f"{path}:{lines[name]}" if name in lines else path) for name, value in texts.items()
    }


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Turn nested tables into dotted names, true into "true" and lists into "a,b"."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            flat.update(flatten(value, name + "."))
        elif isinstance(value, list):
            flat[name] = ",".join(_scalar(element) for element in value)
        else:
            flat[name] = _scalar(value)
    return flat


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _key_lines(text: str) -> dict[str, int]:
    """Return the line number of each key, by its dotted name; keys inside inline tables are missing.

    tomllib does not report lines, so this searches the text. The result is only displayed.
    """
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if table := _TABLE.fullmatch(line):
            prefix = _dotted_name(table[1]) + "."
        elif key := _KEY.match(line):
            lines.setdefault(prefix + _dotted_name(key[1]), number)
    return lines


def _dotted_name(key: str) -> str:
    return re.sub(r"""["']|\s*(\.)\s*""", r"\1", key)
