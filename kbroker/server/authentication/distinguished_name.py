"""The principal of a client certificate: its subject as Java prints it (RFC 2253), and ssl.principal.mapping.rules.

The certificate has been verified by OpenSSL. Its subject is read from the DER encoding, since Python's getpeercert()
loses the types of values, on which Java's text depends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.config.values import ConfigError

_NAMES = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
# By DER tag: UTF8String, PrintableString, TeletexString, IA5String, UniversalString, BMPString.
_ENCODINGS = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
_VERSION_TAG = 0xA0


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def _elements(der: bytes) -> Iterator[_Element]:
    pos = 0
    while pos < len(der):
        start, length, end = pos, der[pos + 1], pos + 2
        if length > 127:
            end += length & 127
            length = int.from_bytes(der[pos + 2 : end])
        pos = end + length
        yield _Element(der[start], der[end:pos], der[start:pos])


def subject(certificate: bytes) -> str:
    """Return the distinguished name of a DER certificate as Java's X500Principal.getName() does."""
    signed = next(_elements(next(_elements(certificate)).content))
    # The serial number, the signature algorithm, the issuer, the validity, the subject.
    fields = [element for element in _elements(signed.content) if element.tag != _VERSION_TAG]
    return ",".join(reversed([_relative_name(each.content) for each in _elements(fields[4].content)]))


def _relative_name(der: bytes) -> str:
    attributes = []
    for attribute in _elements(der):
        type_, value = _elements(attribute.content)
        oid = _object_identifier(type_.content)
        name, encoding = _NAMES.get(oid), _ENCODINGS.get(value.tag)
        if name is None or encoding is None:
            attributes.append(f"{name or oid}=#{value.encoded.hex()}")
        else:
            attributes.append(f"{name}={_escape(value.content.decode(encoding, 'replace'))}")
    return "+".join(attributes)


def _object_identifier(der: bytes) -> str:
    numbers, number = [], 0
    for byte in der:
        number = number << 7 | byte & 127
        if byte < 128:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - first * 40, *numbers[1:])))


def _escape(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    return escaped[:-1] + "\\ " if escaped.endswith(" ") and len(value) > 1 else escaped


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    replacement: str
    case: str


_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\$(\d)")


class PrincipalMapper:
    """Raises ConfigError for invalid rules."""

    def __init__(self, config: str, rules: str) -> None:
        self._rules: list[_Rule] = []
        pos = 0
        while pos < len(rules):
            match = _RULE.match(rules, pos)
            if match is None or match.end() == pos:
                raise ConfigError(f"Invalid rule in {config}, use RULE:pattern/replacement/ with L or U: {rules[pos:]}")
            pos = match.end()
            if match[1]:
                self._rules.append(_Rule(None, "", ""))
                continue
            try:
                pattern = re.compile(match[2])
                replacement = _GROUP.sub(r"\\g<\1>", match[3])
                pattern.sub(replacement, "")
            except (re.error, IndexError) as error:
                raise ConfigError(f"Invalid rule in {config}: {error}") from None
            self._rules.append(_Rule(pattern, replacement, match[4]))

    def user(self, name: str) -> str | None:
        """Return the user of a distinguished name; None if no rule applies."""
        for rule in self._rules:
            if rule.pattern is None:
                return name
            match = rule.pattern.fullmatch(name)
            if match is not None:
                user = match.expand(rule.replacement)
                return user.lower() if rule.case == "L" else user.upper() if rule.case == "U" else user
        return None
