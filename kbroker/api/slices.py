"""Large requests are divided into slices, between which the event loop serves other requests.

A request of the largest size has thousands of elements, or a name of 32 KB in each of them. If it were handled at once,
all other clients would wait for as long as that takes. A slice takes about half a millisecond.
"""

from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

# The cost of an element, to which its size in bytes is added, and the cost of a full slice.
ELEMENT_COST = 500
SLICE_COST = 64 * 1024


class Division(NamedTuple):
    """How a large request is divided into requests of one slice each, and how their responses are joined.

    It is for APIs whose elements have results that do not depend on each other. `elements` and `results` name the
    nested list fields of the request and of the response, the outer one first: ("groups",), or ("topics",
    "partitions"). `element_cost`: the cost of one element, to which its size in bytes is added.
    """

    elements: tuple[str, ...]
    results: tuple[str, ...]
    element_cost: int = ELEMENT_COST

    def divide(self, request: Any) -> Iterator[tuple[Any, bool]]:
        """Yield requests of one slice each, and whether the first element continues the last one of the slice before.

        The structs of a request are shared, and not changed.
        """
        outer = self.elements[0]
        elements: list[Any] = []
        cost, continues = 0, False
        for element in getattr(request, outer):
            for part, part_cost, is_rest in self._parts(element):
                if elements and cost + part_cost > SLICE_COST:
                    yield _with_list(request, outer, elements), continues
                    elements, cost, continues = [], 0, is_rest
                elements.append(part)
                cost += part_cost
        yield _with_list(request, outer, elements), continues

    def _parts(self, element: Any) -> Iterator[tuple[Any, int, bool]]:
        """Yield an element in parts of at most a slice: each with its cost, and whether it is not the first part."""
        if len(self.elements) == 1:
            yield element, self.element_cost + (len(element) if isinstance(element, str) else 0), False
            return
        inner = self.elements[1]
        values = getattr(element, inner)
        size = SLICE_COST // self.element_cost - 1
        for start in range(0, len(values) or 1, size):
            part = element if len(values) <= size else _with_list(element, inner, values[start : start + size])
            yield part, self.element_cost * (1 + len(getattr(part, inner))), start > 0

    def join(self, response: Any, more: Any, continues: bool) -> None:
        """Append the results of `more`, the response to the next slice, to `response`, the joined ones before it."""
        results, added = getattr(response, self.results[0]), getattr(more, self.results[0])
        if continues:
            getattr(results[-1], self.results[1]).extend(getattr(added[0], self.results[1]))
            added = added[1:]
        results.extend(added)


def _with_list(struct: Any, name: str, values: list[Any]) -> Any:
    changed = copy(struct)
    setattr(changed, name, values)
    return changed
