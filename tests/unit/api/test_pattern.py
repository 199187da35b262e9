"""Regular expressions in RE2's syntax; what Apache Kafka 4.3.1 answers to each (ListTransactions) is the measure."""

import re
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.api.pattern.pattern import Pattern
from kbroker.common import KafkaError
from protocol.errors import ErrorCode

TEXTS = ["alpha", "beta", "a.b", "gamma-1"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("a", []),
        ("a.*", ["alpha", "a.b"]),
        ("alpha", ["alpha"]),
        ("^alpha$", ["alpha"]),
        ("al.*|b.*", ["alpha", "beta"]),
        (r"a\.b", ["a.b"]),
        ("(?i)ALPHA", ["alpha"]),
        (r"\pL+", ["alpha", "beta"]),
        (r"\p{Ll}+", ["alpha", "beta"]),
        (r"\PN+", ["alpha", "beta", "a.b"]),
        ("[[:alpha:]]+", ["alpha", "beta"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"\Qa.b", ["a.b"]),
        ("(?<n>a.*)", ["alpha", "a.b"]),
        ("(?P<n>a.*)", ["alpha", "a.b"]),
        (r"\d", []),
        ("(?s).*", TEXTS),
        (r"\w+", ["alpha", "beta"]),
        ("[a-z]+", ["alpha", "beta"]),
        (".{1,3}", ["a.b"]),
        (".{5,}", ["alpha", "gamma-1"]),
        (r"\babc", []),
        (r"a\b.\bb", ["a.b"]),
        ("(?:alpha|beta)", ["alpha", "beta"]),
        ("[^b]*", ["alpha", "gamma-1"]),
        (r"\x61lpha", ["alpha"]),
        (r"\x{61}\154pha", ["alpha"]),
        ("x*", []),
        ("(?i:GA)mma.1", ["gamma-1"]),
        ("(?i:G)AMMA.1", []),
        ("[]a.b]+", ["a.b"]),
        (".+?-1", ["gamma-1"]),
        ("a{,3}", []),
    ],
)
def test_whole_texts_match(pattern: str, matched: list[str]) -> None:
    assert [text for text in TEXTS if Pattern(pattern).matches(text)] == matched


@pytest.mark.parametrize(
    "pattern",
    [
        "[", "(", ")", "(?", "(?=a).*", "(?!a)", "(?<=a)b", "(?>a)", r"(a)\1", "a{2000}", "a{2,1}", "a{0,1001}", ".*+",
        "a++", "*", "a**", "a|*", r"\C+", r"\y", "\\", r"\p{Nope}", r"\p{", "[[:nope:]]", "[z-a]", r"\x{110000}",
        r"\xg0", "(?P<>a)", "(?z)a", "(a", "((((a{1000}){1000}){1000}){1000})", "(" * 5000 + ")" * 5000,
        "{" * 30_000 + "}",
    ],
)  # fmt: skip
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        Pattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*)(.*)(.*)(.*)(.*)[^a]", "a?" * 100 + "a" * 100]
)
def test_what_takes_for_ever_elsewhere_takes_no_time(pattern: str) -> None:
    began = time.process_time()
    Pattern(pattern).matches("a" * 2000)
    assert time.process_time() - began < 5


def test_a_long_match_gives_others_their_turn() -> None:
    # Which of the last sixty were an a: hardly any step is like another one.
    text = "".join(Random(1).choices("ab", k=1000))
    work = Pattern("(?:a|b)*a(?:a|b){60}").matching(text)
    assert sum(1 for _ in work) > 1


# Python's own engine as the oracle, for what both have: small patterns over two letters, a newline and a hyphen.

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\W", r"\b", "^", "$", "(?:a|b-)", "a*", "-?", "b{1,2}", "\n"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        inner.map(lambda one: f"(?:{one})*"),
        inner.map(lambda one: f"(?:{one}){{0,2}}"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("ab-\n", max_size=8))
def test_it_agrees_with_python(pattern: str, text: str) -> None:
    # RE2's $ is the end of the text only.
    theirs = re.fullmatch(pattern.replace("$", r"\Z"), text, re.ASCII)
    assert Pattern(pattern).matches(text) == bool(theirs)
