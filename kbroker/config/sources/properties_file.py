"""Configs in a properties file, parsed as java.util.Properties does, with the line of each."""

import re
from collections.abc import Iterator

from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs
from kbroker.config.values import ConfigError

_LINE_END = re.compile("\r\n|\r|\n")
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties_file(path: str, data: bytes) -> StaticConfigs:
    """Parse a properties file. Raises ConfigError."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # Java's encoding of properties files
    return {name: StaticConfig(value, f"{path}:{line}") for name, value, line in parse_properties(path, text)}


def parse_properties(path: str, text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (name, value, line number); the last value of a repeated name applies. Raises ConfigError."""
    for logical, line in _logical_lines(text):
        match = _KEY_AND_VALUE.fullmatch(logical)
        assert match is not None  # a logical line never ends with a single backslash
        try:
            yield _unescape(match[1]), _unescape(match[2]), line
        except ValueError as error:
            raise ConfigError(f"{path}:{line}: {error}") from None


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield each logical line with its number. Skips comments and blank lines, and joins continued lines."""
    logical, first_number = "", 0
    is_continued = False
    natural_lines = _LINE_END.split(text)
    if not natural_lines[-1]:
        del natural_lines[-1]
    for number, natural in enumerate(natural_lines, 1):
        part = natural.lstrip(" \t\f")
        if not logical:
            first_number = number
            if part[:1] in ("#", "!"):
                is_continued = False
                continue
            if not part and not is_continued:
                continue
        # An odd number of backslashes at its end continues a line.
        is_continued = (len(part) - len(part.rstrip("\\"))) % 2 == 1
        logical += part[:-1] if is_continued else part
        if not is_continued and logical:
            yield logical, first_number
            logical = ""
    if logical or is_continued:
        yield logical, first_number


def _unescape(text: str) -> str:
    """Replace escape sequences. Raises ValueError."""
    if "\\" not in text:
        return text
    unescaped = _ESCAPE.sub(_unescape_match, text)
    # Java writes a character beyond U+FFFF as two escapes, a surrogate pair.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape_match(match: re.Match[str]) -> str:
    escaped = match[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    if escaped == "u":
        raise ValueError("Malformed \\uxxxx encoding.")
    return _ESCAPED_LETTERS.get(escaped, escaped)
