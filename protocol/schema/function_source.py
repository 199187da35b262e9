"""The source text of a generated function, built line by line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FunctionSource:
    """The source of a function named `function`, and the constants that its lines refer to."""

    def __init__(self, signature: str) -> None:
        self._lines = [signature]
        self._depth = 1
        self._variables = 0
        self._constant_names: dict[object, str] = {}
        self.constants: dict[str, Any] = {}

    def emit(self, line: str) -> None:
        """Append a line at the current indentation."""
        self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a line that ends with a colon, and indent what is emitted inside the `with` statement."""
        self.emit(head)
        self._depth += 1
        yield
        self._depth -= 1

    def variable(self, prefix: str) -> str:
        """Return an unused variable name."""
        self._variables += 1
        return f"{prefix}{self._variables}"

    def constant(self, prefix: str, key: object, value: Any) -> str:
        """Return the name of a constant; constants with equal keys are the same constant."""
        name = self._constant_names.get(key)
        if name is None:
            name = self._constant_names[key] = self.variable(prefix)
            self.constants[name] = value
        return name

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, title: str) -> Any:
        """Return the function. Tracebacks and profiles show `<title>` as its file."""
        names = dict(self.constants)
        exec(compile(self.text(), f"<{title}>", "exec"), names)
        return names["function"]
