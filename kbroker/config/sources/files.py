"""Files of configs: TOML, and Kafka's own server.properties as java.util.Properties reads it.

Pure: contents in, values with the line that they stand on out. Imported only where there is a file.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping

from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs
from kbroker.config.values import ConfigError

# What Kafka 4 no longer knows, in files that were made for an older one.
_REMOVED = re.compile(
    r"zookeeper\..+|broker\.id\.generation\.enable|control\.plane\.listener\.name|delegation\.token\.master\.key"
    r"|inter\.broker\.protocol\.version|log\.message\.(?:format\.version|timestamp\.difference\.max\.ms)"
    r"|log\.message\.downconversion\.enable|offsets\.commit\.required\.acks|reserved\.broker\.max\.id"
    r"|(?:advertised\.)?host\.name|(?:advertised\.)?port"
)

_LINE_END = re.compile("\r\n|\r|\n")
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The parser's time grows with the square of a key's parts.
_TOML_DEEP = re.compile(r"(?<![\"'A-Za-z0-9_-])(?:[\"'A-Za-z0-9_-]++[ \t]*+\.[ \t]*+){64}")
_TOML_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_TOML_KEY = re.compile(
    r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*="""
)


def parse_config_file(path: str, data: bytes) -> StaticConfigs:
    """A file's configs: by its ending, .toml or .properties, or else by what it can be read as. Raises ConfigError."""
    if path.endswith(".properties"):
        return _from_properties(path, data)
    try:
        return _from_toml(path, data)
    except ConfigError:
        if path.endswith(".toml"):
            raise
        return _from_properties(path, data)


def drop_removed_configs(given: Mapping[str, StaticConfig]) -> tuple[StaticConfigs, list[str]]:
    """What Kafka 4 knows, and a sentence for each config that it has not any more."""
    kept: StaticConfigs = {}
    sentences = []
    for name, one in given.items():
        if _REMOVED.fullmatch(name):
            sentences.append(f"{name} ({one.origin}) is of Kafka before 4.0 and is left out")
        else:
            kept[name] = one
    return kept, sentences


# TOML.


def _from_toml(path: str, data: bytes) -> StaticConfigs:
    try:
        text = data.decode()
        if deep := _TOML_DEEP.search(text):
            raise ValueError(f"{deep[0][:20]}... is a key of too many parts")
        flat = flatten(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    lines = _toml_lines(text)
    return {
        name: StaticConfig(value, f"{path}:{lines[name]}" if name in lines else path) for name, value in flat.items()
    }


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested tables to dotted names; true to "true", a list to "a,b"."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            flat.update(flatten(value, name + "."))
        elif isinstance(value, list):
            flat[name] = ",".join(_scalar(item) for item in value)
        else:
            flat[name] = _scalar(value)
    return flat


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml_lines(text: str) -> dict[str, int]:
    """The line of each key that stands on a line of its own, by its dotted name. Only to be shown."""
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        if table := _TOML_TABLE.fullmatch(line):
            prefix = _dotted(table[1]) + "."
        elif key := _TOML_KEY.match(line):
            lines.setdefault(prefix + _dotted(key[1]), number)
    return lines


def _dotted(key: str) -> str:
    return re.sub(r"""["']|\s*(\.)\s*""", r"\1", key)


# Java's properties.


def _from_properties(path: str, data: bytes) -> StaticConfigs:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # what Java takes a properties file for
    return {name: StaticConfig(value, f"{path}:{line}") for name, value, line in parse_properties(path, text)}


def parse_properties(path: str, text: str) -> Iterator[tuple[str, str, int]]:
    """(name, value, line), as java.util.Properties reads them; the last of a name counts. Raises ConfigError."""
    for logical, line in _logical_lines(text):
        match = _KEY_AND_VALUE.fullmatch(logical)
        assert match is not None  # a lone backslash at the end does not occur in a logical line
        try:
            yield _unescaped(match[1]), _unescaped(match[2]), line
        except ValueError as error:
            raise ConfigError(f"{path}:{line}: {error}") from None


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Lines without comments and blank ones, those that a backslash continues put together; with the first's number."""
    logical, first = "", 0
    continued = False
    naturals = _LINE_END.split(text)
    if not naturals[-1]:
        del naturals[-1]
    for number, natural in enumerate(naturals, 1):
        part = natural.lstrip(" \t\f")
        if not logical:
            first = number
            if part[:1] in ("#", "!"):
                continued = False
                continue
            if not part and not continued:
                continue
        continued = (len(part) - len(part.rstrip("\\"))) % 2 == 1
        logical += part[:-1] if continued else part
        if not continued and logical:
            yield logical, first
            logical = ""
    if logical or continued:
        yield logical, first


def _unescaped(text: str) -> str:
    """Raises ValueError."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_meant, text)
    # Java writes what lies beyond 16 bits as two escapes.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _meant(escape: re.Match[str]) -> str:
    what = escape[1]
    if len(what) > 1:
        return chr(int(what[1:], 16))
    if what == "u":
        raise ValueError("Malformed \\uxxxx encoding.")
    return _LETTERS.get(what, what)
