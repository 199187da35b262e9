"""Expected results are those of Apache Kafka 4.3.1 (RE2/J) for the same patterns in ListTransactions."""

import re
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common import KafkaError
from kbroker.coordinator.re2_pattern import Re2Pattern
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
def test_a_pattern_matches_whole_texts(pattern: str, matched: list[str]) -> None:
    assert Re2Pattern(pattern).select_blocking(TEXTS) == matched


@pytest.mark.parametrize(
    "pattern",
    [
        "[", "(", ")", "(?", "(?=a).*", "(?!a)", "(?<=a)b", "(?>a)", r"(a)\1", "a{2000}", "a{2,1}", "a{0,1001}", ".*+",
        "a++", "*", "a**", "a|*", r"\y", "\\", r"\p{Nope}", r"\p{", "[[:nope:]]", "[z-a]", r"\x{110000}",
        r"\xg0", "(?P<>a)", "(?z)a", "(a", "((((a{1000}){1000}){1000}){1000})", "{" * 30_000 + "}",
    ],
)  # fmt: skip
def test_invalid_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(KafkaError) as rejected:
        Re2Pattern(pattern)
    assert rejected.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern",
    [
        # RE2 matches a single byte with it; RE2/J does not know it.
        r"\C+",
        # RE2 does not recurse, so it does not limit how deeply groups are nested.
        "(" * 5000 + ")" * 5000,
    ],
)
def test_patterns_that_re2_accepts_and_re2j_rejects(pattern: str) -> None:
    Re2Pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*)(.*)(.*)(.*)(.*)[^a]", "a?" * 100 + "a" * 100]
)
def test_patterns_that_backtracking_engines_never_finish_are_matched_in_linear_time(pattern: str) -> None:
    start_s = time.process_time()
    Re2Pattern(pattern).matches("a" * 2000)
    assert time.process_time() - start_s < 5


# Python's own engine is the oracle for small patterns over two letters, a newline and a hyphen.

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\W", r"\b", "^", "$", "(?:a|b-)", "a*", "-?", "b{1,2}", "\n"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        inner.map(lambda text: f"(?:{text})*"),
        inner.map(lambda text: f"(?:{text}){{0,2}}"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("ab-\n", max_size=8))
def test_re2_agrees_with_python(pattern: str, text: str) -> None:
    # In RE2 `$` only matches at the end of the text, in Python also before a final newline.
    expected = re.fullmatch(pattern.replace("$", r"\Z"), text, re.ASCII)
    assert Re2Pattern(pattern).matches(text) == bool(expected)


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(KafkaError, match="needs the package google-re2") as failed:
        Re2Pattern("a.*")
    assert failed.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
