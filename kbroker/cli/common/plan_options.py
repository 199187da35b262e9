"""The options of every command that makes a plan of moves and lets the controller run it."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from kbroker.cli.common.options import AsJson, Concurrent, Detach, DryRun, Throttle, Yes
from kbroker.cli.common.parsing import parse_rate

DEFAULT_CONCURRENT = 10


class PlanOptions(NamedTuple):
    """How to show and run a plan. `throttle`: bytes per second, None for no throttle. `concurrent`: None for 10."""

    dry_run: bool = False
    throttle: int | None = None
    concurrent: int | None = None
    detach: bool = False
    yes: bool = False
    as_json: bool = False

    @property
    def max_concurrent_moves(self) -> int:
        return DEFAULT_CONCURRENT if self.concurrent is None else self.concurrent

    @property
    def used(self) -> list[str]:
        """The names of the options that the command line has."""
        changed = [name for name in self._fields if getattr(self, name) != getattr(NO_PLAN_OPTIONS, name)]
        return ["--" + name.removeprefix("as_").replace("_", "-") for name in changed]


NO_PLAN_OPTIONS = PlanOptions()

_ANNOTATIONS: dict[str, Any] = {
    "dry_run": DryRun,
    "throttle": Throttle,
    "concurrent": Concurrent,
    "detach": Detach,
    "yes": Yes,
    "as_json": AsJson,
}


def with_plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that has a parameter `options: PlanOptions`: it gets one option for each field instead.

    The command raises CliError for a rate that cannot be parsed.
    """

    @wraps(command)
    def command_with_options(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in _ANNOTATIONS}
        if values["throttle"] is not None:
            values["throttle"] = parse_rate(values["throttle"])
        command(**arguments, options=PlanOptions(**values))

    signature = inspect.signature(command)
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = [
        inspect.Parameter(name, keyword, default=getattr(NO_PLAN_OPTIONS, name), annotation=annotation)
        for name, annotation in _ANNOTATIONS.items()
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "options":
            parameters += fields
        else:
            parameters.append(parameter.replace(kind=keyword))
    command_with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command_with_options.__annotations__ = {**command.__annotations__, **_ANNOTATIONS}
    del command_with_options.__annotations__["options"]
    return command_with_options
