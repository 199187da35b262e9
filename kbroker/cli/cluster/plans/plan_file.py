"""Reads a plan from the JSON that `--dry-run --json` prints."""

import json
from typing import Any, NamedTuple

from kbroker.cli.cluster.plans.cordon import drained_brokers
from kbroker.cli.common.errors import CliError, exception_text
from kbroker.metadata.reassignments.placement.reassignment_plan import GivenMove


class PlanFile(NamedTuple):
    """What a file says about a plan. `description` may be empty."""

    description: str
    moves: list[GivenMove]


def read_plan_file(path: str) -> PlanFile:
    """Return the plan of a file. Raises CliError if the file cannot be read, or is not such a plan."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
        moves = [
            GivenMove(str(move["topic"]), int(move["partition"]), _ids(move["original"]), _ids(move["target"]))
            for move in document["moves"]
        ]
        description = str(document.get("description", ""))
        # A drain names its brokers there.
        drained_brokers(description)
        return PlanFile(description, moves)
    except OSError as error:
        raise CliError(exception_text(error)) from None
    except (ValueError, KeyError, TypeError):
        # JSON that cannot be parsed is a ValueError, too.
        raise CliError(f"{path} is not a plan: it must have what --dry-run --json prints") from None


def _ids(brokers: list[Any]) -> tuple[int, ...]:
    return tuple(int(broker) for broker in brokers)
