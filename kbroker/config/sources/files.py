"""Config files: TOML, or Kafka's server.properties, with the line of each config.

Pure: the caller reads the file. This module is only imported when there is a file.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping

from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs
from kbroker.config.values import ConfigError

# Configs of earlier Kafka versions that Kafka 4.0 removed. kbroker has some of those of ZooKeeper.
_REMOVED = re.compile(
    r"zookeeper\..+|broker\.id\.generation\.enable|control\.plane\.listener\.name|delegation\.token\.master\.key"
    r"|inter\.broker\.protocol\.version|log\.message\.(?:format\.version|timestamp\.difference\.max\.ms)"
    r"|log\.message\.downconversion\.enable|offsets\.commit\.required\.acks|reserved\.broker\.max\.id"
    r"|(?:advertised\.)?host\.name|(?:advertised\.)?port"
)


def parse_config_file(path: str, data: bytes) -> StaticConfigs:
    """Parse a file's configs. Raises ConfigError.

    The format is determined by the file extension, .toml or .properties. A file with another extension is parsed as
    TOML, or as properties if it is not valid TOML.
    """
    if path.endswith(".properties"):
        return parse_properties_file(path, data)
    try:
        return parse_toml_file(path, data)
    except ConfigError:
        if path.endswith(".toml"):
            raise
        return parse_properties_file(path, data)


def drop_removed_configs(configs: Mapping[str, StaticConfig]) -> tuple[StaticConfigs, list[str]]:
    """Return the configs without those that Kafka 4.0 removed, and a warning for each of these."""
    kept: StaticConfigs = {}
    warnings = []
    for name, config in configs.items():
        if name not in BROKER_CONFIGS and _REMOVED.fullmatch(name):
            warnings.append(f"{name} ({config.origin}) was removed in Kafka 4.0 and is ignored")
        else:
            kept[name] = config
    return kept, warnings


# TOML.

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


# Properties, parsed as java.util.Properties does.

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
