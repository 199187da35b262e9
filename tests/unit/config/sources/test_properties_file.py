"""Properties files, parsed as java.util.Properties parses them."""

import pytest

from kbroker.config import ConfigError
from kbroker.config.sources.files import parse_properties, parse_properties_file
from kbroker.config.sources.static_configs import StaticConfig

# Texts, and their properties according to java.util.Properties (JDK 17).
JAVA = [
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("a \t = \f b ", {"a": "b "}),
    ("a = = b", {"a": "= b"}),
    ("a=b=c:d", {"a": "b=c:d"}),
    ("a", {"a": ""}),
    ("=b", {"": "b"}),
    ("  # a=b\n\t!c\n \n\r\rd=e", {"d": "e"}),
    ("a=b#c", {"a": "b#c"}),
    ("a=b\nc=d\ra=e\r\nf=g", {"a": "e", "c": "d", "f": "g"}),
    ("a=b,\\\n   c,\\\r\n\td", {"a": "b,c,d"}),
    ("a=b\\\n# c", {"a": "b# c"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("# a\\\nb=c", {"b": "c"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=b\\", {"a": "b"}),
    ("\\\n", {"": ""}),
    ("\\\n# a", {}),
    ("a\\=\\:\\ b=c", {"a=: b": "c"}),
    ("a=\\t\\n\\r\\f\\b\\\"\\'\\#", {"a": "\t\n\r\fb\"'#"}),
    ("a=\\u0041\\u20acx", {"a": "A€x"}),
    ("a=\\ud83d\\ude00", {"a": "😀"}),
]


@pytest.mark.parametrize(("text", "properties"), JAVA, ids=[repr(text) for text, _ in JAVA])
def test_properties_are_parsed_as_java_parses_them(text: str, properties: dict[str, str]):
    assert {name: value for name, value, _ in parse_properties("f", text)} == properties


def test_a_malformed_escape_is_reported_with_its_line():
    with pytest.raises(ConfigError, match=r"^f\.properties:3: Malformed \\uxxxx encoding\.$"):
        parse_properties_file("f.properties", b"a=b\n\nc=\\u12g4")


def test_each_value_has_its_line_number():
    assert parse_properties_file("f.properties", b"# a\na=b,\\\n  c\n\nd=e\na=f") == {
        "a": StaticConfig("f", "f.properties:6"),
        "d": StaticConfig("e", "f.properties:5"),
    }


def test_properties_are_utf_8_or_else_latin_1():
    assert parse_properties_file("f.properties", "a=é€".encode())["a"].text == "é€"
    assert parse_properties_file("f.properties", "a=é".encode("latin-1"))["a"].text == "é"
