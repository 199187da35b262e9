"""The output of `kbroker replay`: of a dry run, and of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cli.common.formatting import count_text, format_size, format_timestamp
from kbroker.cli.common.output import print_heading, print_json, print_note, print_table

if TYPE_CHECKING:
    from kbroker.pipeline.replay.group_offsets import GroupPosition
    from kbroker.pipeline.replay.preparation import PreparedReplay
    from kbroker.pipeline.replay.run import ReplaySummary


def print_dry_run(prepared: "PreparedReplay", as_json: bool) -> None:
    """Print what a prepared replay would do."""
    positions = prepared.group_positions()
    for warning in prepared.warnings:
        print_note(f"note: {warning}")
    if as_json:
        print_json(_dry_run_json(prepared, positions))
        return
    rows = sum(totals.rows for totals in prepared.totals.values())
    size = sum(totals.size for totals in prepared.totals.values())
    print_heading("would replay", f"{count_text(rows, 'record')}, {format_size(size)}")
    print_table(
        ("topic", "partition", "records", "size", "first", "last", "at offset"),
        [
            [
                *target,
                totals.rows,
                format_size(totals.size),
                format_timestamp(totals.from_ms),
                format_timestamp(totals.to_ms),
                prepared.start_offset(target),
            ]
            for target, totals in prepared.totals.items()
        ],
    )
    for name, topic in prepared.new_topics.items():
        configs = "".join(f" {config}={value}" for config, value in sorted(topic.configs.items()))
        print_note(f"would create topic {name} with {count_text(topic.partitions, 'partition')}{configs}")
    if positions:
        print_heading("groups", "offsets that would be committed")
        print_table(
            ("group", "topic", "partition", "offset"),
            [list(row.values()) for row in _group_rows(prepared, positions)],
        )
    print_note("dry run: nothing was created or sent")


def _group_rows(prepared: "PreparedReplay", positions: "Sequence[GroupPosition]") -> list[dict[str, Any]]:
    return [
        {
            "group": prepared.request.group_prefix + group,
            **target._asdict(),
            "offset": prepared.start_offset(target) + position,
        }
        for group, target, position in positions
    ]


def _dry_run_json(prepared: "PreparedReplay", positions: "Sequence[GroupPosition]") -> dict[str, Any]:
    return {
        "dry_run": True,
        "records": sum(totals.rows for totals in prepared.totals.values()),
        "targets": [
            {
                **target._asdict(),
                "records": totals.rows,
                "bytes": totals.size,
                "from_ms": totals.from_ms,
                "to_ms": totals.to_ms,
                "offset": prepared.start_offset(target),
            }
            for target, totals in prepared.totals.items()
        ],
        "creates": {
            name: {"partitions": topic.partitions, "configs": topic.configs}
            for name, topic in prepared.new_topics.items()
        },
        "groups": _group_rows(prepared, positions),
        "warnings": list(prepared.warnings),
    }


def print_summary(summary: "ReplaySummary", as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        print_json(_summary_json(summary))
        return
    sent_before = summary.rows - summary.sent
    already = f" ({sent_before} were already there)" if sent_before else ""
    rate = f", {summary.sent / max(summary.seconds, 1e-9):.0f} records/s" if summary.sent else ""
    print(f"replay {summary.plan.id}: {count_text(summary.sent, 'record')} in {summary.seconds:.1f} s{rate}{already}")
    for group, offsets in summary.groups.items():
        print(f"group {group}: {', '.join(f'{target}: {offset}' for target, offset in offsets.items())}")


def _summary_json(summary: "ReplaySummary") -> dict[str, Any]:
    starts = summary.plan.starts()
    return {
        "replay": summary.plan.id,
        "records": summary.rows,
        "sent": summary.sent,
        "seconds": round(summary.seconds, 3),
        "targets": [
            {**target._asdict(), "records": count, "offset": starts[target].offset}
            for target, count in summary.plan.counts().items()
        ],
        "groups": [
            {"group": group, **target._asdict(), "offset": offset}
            for group, offsets in summary.groups.items()
            for target, offset in offsets.items()
        ],
    }
