"""A table of commands: each is a pattern of words and the function that runs it.

    @COMMANDS.add("cut <file> by <count> bytes")

`<name>` matches one word, which is passed as the parameter of that name; `<name...>` matches all further words.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

# What a command prints: nothing, a line or several.
Output = list[str] | str | None
Run = Callable[..., Awaitable[Output] | Output]


class Pattern(NamedTuple):
    """`settles`: after the command, wait until the broker and the clients have noticed its effect."""

    words: list[str]
    run: Run
    settles: bool

    def match(self, words: list[str]) -> dict[str, Any] | None:
        """Return the parameters of a command; None if the pattern does not match."""
        parameters: dict[str, Any] = {}
        for number, expected in enumerate(self.words):
            if expected.endswith("...>"):
                parameters[expected[1:-4]] = words[number:]
                return parameters
            if number >= len(words):
                return None
            if expected.startswith("<"):
                parameters[expected[1:-1]] = words[number]
            elif expected != words[number]:
                return None
        return parameters if len(words) == len(self.words) else None


class Table:
    """Patterns; the first that matches a command is used."""

    def __init__(self) -> None:
        self.patterns: list[Pattern] = []

    def add(self, pattern: str, *, settles: bool = False) -> Callable[[Run], Run]:
        def register(run: Run) -> Run:
            self.patterns.append(Pattern(pattern.split(), run, settles))
            return run

        return register

    def find(self, command: str) -> tuple[Pattern, dict[str, Any]] | None:
        words = command.split()
        for pattern in self.patterns:
            parameters = pattern.match(words)
            if parameters is not None:
                return pattern, parameters
        return None


def options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return plain words, and those of the form name=value."""
    plain = [word for word in words if "=" not in word]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    return plain, named


def configs_of(words: list[str]) -> dict[str, str]:
    """Return words of the form name=value. Raises LookupError if there are others."""
    plain, named = options(words)
    if plain:
        raise LookupError(f"no such option: {plain[0]}")
    return named


def seconds(text: str) -> float:
    """Parse `10s`, `200ms`, `5m`, `-1h`, `2d`."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)):
        number = text.removesuffix(unit)
        if number != text and number.lstrip("+-").replace(".", "").isdigit():
            return float(number) * factor
    raise ValueError(f"not a duration: {text}")
