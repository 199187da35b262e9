"""All targets, by name. A new decoder gets a row here."""

from functools import cache

from tests.unit.fuzz import (
    broker_target,
    file_targets,
    inspect_targets,
    log_targets,
    record_targets,
    text_targets,
    wire_targets,
)
from tests.unit.fuzz.check import Target

MODULES = (wire_targets, record_targets, file_targets, log_targets, inspect_targets, text_targets, broker_target)


@cache
def targets() -> dict[str, Target]:
    return {target.name: target for module in MODULES for target in module.targets()}
