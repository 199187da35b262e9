"""Parses the options of `kbroker replay` into a ReplayRequest and a SpeedLimit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.values import parse_time_ms

if TYPE_CHECKING:
    from kbroker.pipeline.replay.selection import Selection
    from kbroker.pipeline.replay.sending import SpeedLimit

ALL = "all"

# The parameters that can be given with --resume; the stored plan has all others.
RESUME_PARAMETERS = frozenset(
    ("directory", "resume", "rate", "speed", "broker_wait", "as_json", "bootstrap", "master", "jars", "conf")
)


def require_resume_parameters(ctx: typer.Context) -> None:
    """Raise CliError for command line arguments that --resume excludes."""
    excluded = [
        "TOPIC" if param.name == "topics" else param.opts[0]
        for param in ctx.command.params
        if param.name not in RESUME_PARAMETERS and _is_given(ctx, param.name or "")
    ]
    if excluded:
        raise usage_error(
            f"--resume continues a replay with the options of its start and excludes {', '.join(excluded)}"
        )


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parse_limit(rate: float | None, speed: float | None) -> "SpeedLimit":
    from kbroker.pipeline.replay.sending import SpeedLimit

    if rate is not None and speed is not None:
        raise usage_error("--rate and --speed exclude each other")
    for name, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < float("inf"):
            raise usage_error(f"{name} must be a positive number, not {number:g}")
    return SpeedLimit(rate, speed)


def parse_target_names(topics: Sequence[str], to: str | None, prefix: str | None) -> dict[str, str]:
    """Return the target topic of each source topic."""
    from kbroker.pipeline.replay.routing import target_names

    if not topics:
        raise usage_error("name at least one TOPIC to replay")
    if to is not None and prefix is not None:
        raise usage_error("--to and --prefix exclude each other")
    return target_names(dict.fromkeys(topics), to, prefix)


def parse_partitions_by(text: str) -> bool:
    """Return whether records are partitioned by key."""
    if text not in ("partition", "key"):
        raise usage_error(f"--partitions-by must be partition or key, not {text!r}")
    return text == "key"


def parse_time_range(from_: str | None, until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    from_ms = None if from_ is None else parse_time_ms(from_, now_ms)
    until_ms = None if until is None else parse_time_ms(until, now_ms)
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise usage_error("--from must be before --until")
    return from_ms, until_ms


def parse_selection(
    topics: Sequence[str],
    time_range: tuple[int | None, int | None],
    offsets: Sequence[str],
    partitions: Sequence[int],
    key: str | None,
    key_regex: str | None,
    headers: Sequence[str],
) -> "Selection":
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.replay.selection import Selection, parse_offset_range

    try:
        ranges = tuple(parse_offset_range(text) for text in offsets)
    except PipelineError as error:
        raise usage_error(str(error)) from None
    headers_with_values = []
    for text in headers:
        name, sign, value = text.partition("=")
        headers_with_values.append((name, value if sign else None))
    unique_partitions = tuple(dict.fromkeys(partitions))
    return Selection(tuple(topics), *time_range, ranges, unique_partitions, key, key_regex, tuple(headers_with_values))


def parse_groups(groups: Sequence[str], prefix: str) -> tuple[str, ...]:
    from kbroker.pipeline.replay.group_offsets import ALL_GROUPS

    if prefix and not groups:
        raise usage_error("--group-prefix requires --restore-groups")
    return (ALL_GROUPS,) if ALL in groups else tuple(groups)


def check_codec(name: str) -> None:
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.replay.batch_encoder import parse_codec

    try:
        parse_codec(name)
    except PipelineError as error:
        raise usage_error(str(error)) from None
