"""Classes of characters in RE2's regular expressions, as tests of one character."""

import string
import unicodedata
from collections.abc import Callable, Iterable

Test = Callable[[str], bool]

WORD_CHARS = frozenset(string.ascii_letters + string.digits + "_")
# By the letter behind a backslash; an upper case one means all other characters.
PERL = {"d": frozenset(string.digits), "s": frozenset("\t\n\f\r "), "w": WORD_CHARS}
POSIX = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "ascii": "".join(map(chr, range(128))),
    "blank": "\t ",
    "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": "\t\n\v\f\r ",
    "upper": string.ascii_uppercase,
    "word": string.ascii_letters + string.digits + "_",
    "xdigit": string.hexdigits,
}
# Every general category by its letter, and its parts.
_PARTS = {"C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps"}
_CATEGORIES = frozenset(f"{letter}{part}" for letter, parts in _PARTS.items() for part in ("", *parts))


def one_of(chars: Iterable[str]) -> Test:
    return frozenset(chars).__contains__


def none_of(test: Test) -> Test:
    return lambda char: not test(char)


def anything(char: str) -> bool:
    return True


def of_category(name: str) -> Test | None:
    """By the name of a general category, or "Any"; None for an unknown name."""
    if name == "Any":
        return anything
    if name not in _CATEGORIES:
        return None
    return lambda char: unicodedata.category(char).startswith(name)
