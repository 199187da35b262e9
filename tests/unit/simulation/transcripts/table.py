"""A table of commands: each a pattern of words and the function that does it.

    @COMMANDS.add("cut <file> by <count> bytes")

`<name>` takes one word and gives it to the parameter of that name; `<name...>` takes the rest, if there is any.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

Run = Callable[..., Awaitable[list[str]]]


class Pattern(NamedTuple):
    words: list[str]
    run: Run

    def match(self, words: list[str]) -> dict[str, Any] | None:
        """The parameters that a command gives, None if it is another one."""
        found: dict[str, Any] = {}
        for number, expected in enumerate(self.words):
            if expected.endswith("...>"):
                found[expected[1:-4]] = words[number:]
                return found
            if number >= len(words):
                return None
            if expected.startswith("<"):
                found[expected[1:-1]] = words[number]
            elif expected != words[number]:
                return None
        return found if len(words) == len(self.words) else None


class Table:
    """Patterns in the order in which they are tried."""

    def __init__(self) -> None:
        self.patterns: list[Pattern] = []

    def add(self, pattern: str) -> Callable[[Run], Run]:
        def take(run: Run) -> Run:
            self.patterns.append(Pattern(pattern.split(), run))
            return run

        return take

    def find(self, command: str) -> tuple[Run, dict[str, Any]] | None:
        words = command.split()
        for pattern in self.patterns:
            parameters = pattern.match(words)
            if parameters is not None:
                return pattern.run, parameters
        return None


def options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Plain words, and those of the form name=value."""
    plain = [word for word in words if "=" not in word]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    return plain, named


def configs_of(words: list[str]) -> dict[str, str]:
    """Words of the form name=value only. Raises LookupError."""
    plain, named = options(words)
    if plain:
        raise LookupError(f"no such option: {plain[0]}")
    return named


def seconds(text: str) -> float:
    """`10s`, `200ms`, `5m`, `-1h`, `2d`."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)):
        number = text.removesuffix(unit)
        if number != text and number.lstrip("+-").replace(".", "").isdigit():
            return float(number) * factor
    raise ValueError(f"no time: {text}")
