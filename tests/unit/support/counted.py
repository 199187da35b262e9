"""Strings that count how often they are compared: the cost of a decision, independent of the speed of the machine."""


class CountedString(str):
    """A string that counts comparisons. `comparisons`: the number for all such strings since it was set to 0."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedString.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def counted_strings(count: int) -> list[CountedString]:
    """Return different strings, and set the number of comparisons to 0."""
    CountedString.comparisons = 0
    return [CountedString(f"name-{number}") for number in range(count)]
