"""Reads JSON values as the types of the program: the annotations of a dataclass or NamedTuple are the format (pure).

An object stands for a dataclass, a NamedTuple or a mapping (whose keys are str or int), a list for a tuple or a
NamedTuple. A field may be missing if it has a default, and unknown fields are ignored. A class with a method
`from_json` reads itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read_json(kind: type[T], value: Any) -> T:
    """Return the value as this type. Raises ValueError or TypeError if it is of another one."""
    return cast(T, _reader(cast(Any, kind))(value))


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (Union, UnionType):
        (item,) = (_reader(argument) for argument in arguments if argument is not NoneType)
        return lambda value: None if value is None else item(value)
    if origin is tuple and arguments[-1] is Ellipsis:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, require_type(list, value)))
    if origin is tuple:
        items = tuple(map(_reader, arguments))
        return lambda value: tuple(read(part) for read, part in zip(items, require_type(list, value), strict=True))
    if origin is not None and issubclass(origin, Mapping):
        key, item = arguments[0], _reader(arguments[1])
        return lambda value: {key(name): item(part) for name, part in require_type(dict, value).items()}
    if hasattr(kind, "from_json"):
        return cast(Callable[[Any], Any], kind.from_json)
    if is_dataclass(kind) or issubclass(kind, tuple):
        return _object_reader(kind)
    return lambda value: require_type(kind, value)


def _object_reader(kind: Any) -> Callable[[Any], Any]:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}

    def read(value: Any) -> Any:
        if type(value) is list and issubclass(kind, tuple):
            value = dict(zip(readers, value, strict=True))
        fields = require_type(dict, value)
        return kind(**{name: read_field(fields[name]) for name, read_field in readers.items() if name in fields})

    return read


def require_type(kind: type[T], value: Any) -> T:
    """Return a value that has exactly this type: true is no integer. Raises ValueError."""
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return value
