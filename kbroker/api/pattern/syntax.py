"""The syntax of RE2, read into a tree: https://github.com/google/re2/wiki/Syntax.

What RE2 refuses is refused: looking around, back references, possessive quantifiers, counts above 1,000. Not there
besides: classes by script (\\p{Greek}); general categories (\\p{Lu}, \\pL) are.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import NamedTuple

from kbroker.api.pattern.classes import PERL, POSIX, WORD_CHARS, Test, anything, none_of, of_category, one_of
from kbroker.common import KafkaError
from protocol.errors import ErrorCode

MAX_TEXT = 10_000
MAX_COUNT = 1000
MAX_DEPTH = 100

# Kinds of characters, as assertions see them; EDGE is none at all.
EDGE, NEWLINE, WORD, OTHER = range(4)


class Chars(NamedTuple):
    """Any one of some characters."""

    has: Test


class Assertion(NamedTuple):
    """True between some kinds of characters."""

    holds: Callable[[int, int], bool]


class Sequence(NamedTuple):
    parts: list[Node]


class Several(NamedTuple):
    """One of the options."""

    options: list[Node]


class Repeat(NamedTuple):
    """`most` is None for any number."""

    part: Node
    least: int
    most: int | None


Node = Chars | Assertion | Sequence | Several | Repeat

BEGIN_TEXT = Assertion(lambda before, behind: before == EDGE)
END_TEXT = Assertion(lambda before, behind: behind == EDGE)
BEGIN_LINE = Assertion(lambda before, behind: before in (EDGE, NEWLINE))
END_LINE = Assertion(lambda before, behind: behind in (EDGE, NEWLINE))
WORD_EDGE = Assertion(lambda before, behind: (before == WORD) != (behind == WORD))
NOWORD_CHARS_EDGE = Assertion(lambda before, behind: (before == WORD) == (behind == WORD))

_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ASSERTIONS = {"A": BEGIN_TEXT, "z": END_TEXT, "b": WORD_EDGE, "B": NOWORD_CHARS_EDGE}


def kind_of(char: str) -> int:
    return WORD if char in WORD_CHARS else NEWLINE if char == "\n" else OTHER


def invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"The regular expression is not valid: {why}")


def parse(text: str) -> Node:
    """Raises KafkaError (INVALID_REGULAR_EXPRESSION)."""
    if len(text) > MAX_TEXT:
        raise invalid("it is too large")
    parser = _Parser(text)
    node = parser.several("", 0)
    if parser.pos < len(text):
        raise invalid("there is a ) too many")
    return node


class _Parser:
    """Goes through the text once, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def _peek(self) -> str:
        """The next character, "" at the end."""
        return self.text[self.pos : self.pos + 1]

    def _take(self, expected: str) -> bool:
        """Goes on behind the expected, if it is next."""
        if not self.text.startswith(expected, self.pos):
            return False
        self.pos += len(expected)
        return True

    def _until(self, end: str, what: str) -> str:
        """What stands before `end`; goes on behind it."""
        found = self.text.find(end, self.pos)
        if found < 0:
            raise invalid(f"{what} does not end")
        taken, self.pos = self.text[self.pos : found], found + len(end)
        return taken

    # Groups.

    def several(self, flags: str, depth: int) -> Node:
        """Up to the end or to a closing parenthesis."""
        if depth > MAX_DEPTH:
            raise invalid("too many groups are within one another")
        options: list[Node] = []
        parts: list[Node] = []
        while (char := self._peek()) and char != ")":
            if self._take("|"):
                options.append(Sequence(parts))
                parts = []
            elif self._take("(?"):
                flags = self._special_group(flags, depth, parts)
            elif self._take("\\Q"):
                end = self.text.find("\\E", self.pos)
                quoted = self.text[self.pos :] if end < 0 else self.text[self.pos : end]
                self.pos += len(quoted) if end < 0 else len(quoted) + 2
                parts += [Chars(self._literal(one, flags)) for one in quoted]
                self._repeat(parts)
            else:
                parts.append(self._atom(flags, depth))
                self._repeat(parts)
        return Several([*options, Sequence(parts)]) if options else Sequence(parts)

    def _special_group(self, flags: str, depth: int, parts: list[Node]) -> str:
        """What begins with "(?": gives the flags that are valid from there on."""
        if self._take("P<") or self._take("<"):
            name = self._until(">", "the name of a group")
            if not name or not all(char in WORD_CHARS for char in name):
                raise invalid("a group has no name")
            inner = flags
        else:
            changed, end = self._flags(flags)
            if end == ")":
                return changed
            inner = changed
        parts.append(self._group(inner, depth))
        self._repeat(parts)
        return flags

    def _flags(self, flags: str) -> tuple[str, str]:
        """Flags and what ends them."""
        off = False
        while (char := self._peek()) not in (")", ":", ""):
            self.pos += 1
            if char == "-" and not off:
                off = True
            elif char in "imsU":
                flags = flags.replace(char, "") if off else flags + char
            else:
                raise invalid("it has an unknown kind of group")
        self.pos += 1
        return flags, char

    def _group(self, flags: str, depth: int) -> Node:
        node = self.several(flags, depth + 1)
        if not self._take(")"):
            raise invalid("a group does not end")
        return node

    # Repetition.

    def _repeat(self, parts: list[Node]) -> None:
        """The quantifier of the last part, if one follows."""
        counts = self._quantifier()
        if counts is None:
            return
        if not parts:
            raise invalid("there is nothing to repeat")
        parts[-1] = Repeat(parts[-1], *counts)
        self._take("?")
        if self._quantifier() is not None:
            raise invalid("a quantifier follows another one")

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._peek() != "{":
            return None
        # What is no count is just characters.
        end = self.text.find("}", self.pos)
        least, comma, most = self.text[self.pos + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(least) or (most and not _is_number(most)):
            return None
        self.pos = end + 1
        counts = int(least[:9]), int(most[:9]) if most else None if comma else int(least[:9])
        if counts[0] > MAX_COUNT or (counts[1] is not None and not counts[0] <= counts[1] <= MAX_COUNT):
            raise invalid("a count is too large, or larger than its limit")
        return counts

    # Characters.

    def _atom(self, flags: str, depth: int) -> Node:
        char = self._peek()
        self.pos += 1
        if char == "(":
            return self._group(flags, depth)
        if char == "[":
            return Chars(self._class(flags))
        if char == ".":
            return Chars(anything if "s" in flags else (lambda one: one != "\n"))
        if char == "^":
            return BEGIN_LINE if "m" in flags else BEGIN_TEXT
        if char == "$":
            return END_LINE if "m" in flags else END_TEXT
        if char in "*+?":
            raise invalid("there is nothing to repeat")
        if char != "\\":
            return Chars(self._literal(char, flags))
        if self._peek() in _ASSERTIONS:
            self.pos += 1
            return _ASSERTIONS[self.text[self.pos - 1]]
        test = self._escaped_class()
        return Chars(test if test is not None else self._literal(self._escaped(), flags))

    def _literal(self, char: str, flags: str) -> Test:
        return one_of({char, char.lower(), char.upper(), char.swapcase()} if "i" in flags else {char})

    def _escaped_class(self) -> Test | None:
        """A class of characters behind a backslash."""
        char = self._peek()
        if char.lower() in PERL:
            self.pos += 1
            test = one_of(PERL[char.lower()])
        elif char in ("p", "P"):
            self.pos += 1
            test = self._category()
        else:
            return None
        return none_of(test) if char.isupper() else test

    def _category(self) -> Test:
        if self._take("{"):
            name = self._until("}", "the name of a class")
        else:
            name = self._peek()
            self.pos += 1
        negated = name.startswith("^")
        name = name.removeprefix("^")
        test = of_category(name)
        if test is None:
            raise invalid("it has a class that is not known")
        return none_of(test) if negated else test

    def _escaped(self) -> str:
        """The character that is meant by what is behind a backslash."""
        char = self._peek()
        self.pos += 1
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._by_number(self._hex_digits(), 16)
        if char and char in "01234567":
            digits = char
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._peek()
                self.pos += 1
            if len(digits) == 1 and char != "0":
                raise invalid("there are no back references")
            return self._by_number(digits, 8)
        if char and char in string.punctuation:
            return char
        raise invalid("it has an unknown escape")

    def _hex_digits(self) -> str:
        if self._take("{"):
            return self._until("}", "the number of a character")
        self.pos += 2
        return self.text[self.pos - 2 : self.pos]

    def _by_number(self, digits: str, base: int) -> str:
        try:
            return chr(int(digits[:9], base))
        except (ValueError, OverflowError):
            raise invalid("there is no such character") from None

    # Classes.

    def _class(self, flags: str) -> Test:
        """Behind the opening bracket."""
        negated = self._take("^")
        tests: list[Test] = []
        ranges: list[tuple[str, str]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            if not self._peek():
                raise invalid("a class of characters does not end")
            if self._take("[:"):
                tests.append(self._posix())
                continue
            if self._take("\\"):
                test = self._escaped_class()
                if test is not None:
                    tests.append(test)
                    continue
                low = self._escaped()
            else:
                low = self._peek()
                self.pos += 1
            ranges.append((low, self._range_end(low)))
        self.pos += 1
        fold = "i" in flags

        def has(char: str) -> bool:
            forms = (char, char.lower(), char.upper()) if fold else (char,)
            return any(low <= one <= high for one in forms for low, high in ranges) or any(
                test(one) for one in forms for test in tests
            )

        return none_of(has) if negated else has

    def _range_end(self, low: str) -> str:
        if self._peek() != "-" or self.text[self.pos + 1 : self.pos + 2] in ("]", ""):
            return low
        self.pos += 1
        if self._take("\\"):
            high = self._escaped()
        else:
            high = self._peek()
            self.pos += 1
        if high < low:
            raise invalid("a range of characters ends before it begins")
        return high

    def _posix(self) -> Test:
        name = self._until(":]", "the name of a class")
        chars = POSIX.get(name.removeprefix("^"))
        if chars is None:
            raise invalid("it has a class that is not known")
        return none_of(one_of(chars)) if name.startswith("^") else one_of(chars)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
