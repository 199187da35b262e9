"""What `kbroker replay` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.cli.common.formatting import count_text, format_size, format_timestamp
from kbroker.cli.common.output import print_heading, print_json, print_note, print_table

if TYPE_CHECKING:
    from kbroker.pipeline.replay.draft import Draft, World
    from kbroker.pipeline.replay.encoding import Target
    from kbroker.pipeline.replay.groups import Placed
    from kbroker.pipeline.replay.run import Summary


def show(draft: "Draft", world: "World", as_json: bool) -> None:
    """What a dry run has found."""
    places = draft.places(world)
    for warning in draft.warnings:
        print_note(f"note: {warning}")
    if as_json:
        print_json(_draft_json(draft, places))
        return
    rows = sum(amount.rows for amount in draft.amounts.values())
    size = sum(amount.size for amount in draft.amounts.values())
    print_heading("would replay", f"{count_text(rows, 'record')}, {format_size(size)}")
    columns = ("topic", "partition", "records", "size", "first", "last", "at offset")
    print_table(
        columns,
        [
            [
                *target,
                amount.rows,
                format_size(amount.size),
                format_timestamp(amount.from_ms),
                format_timestamp(amount.to_ms),
                _start(draft, target),
            ]
            for target, amount in draft.amounts.items()
        ],
    )
    for name, wanted in draft.wanted.items():
        texts = "".join(f" {key}={value}" for key, value in sorted(wanted.configs.items()))
        print_note(f"would create topic {name} with {count_text(wanted.partitions, 'partition')}{texts}")
    if places:
        print_heading("groups", "where they would stand")
        named = [
            (draft.request.group_prefix + one.group, *one.target, _start(draft, one.target) + one.position)
            for one in places
        ]
        print_table(("group", "topic", "partition", "offset"), named)
    print_note("a dry run: nothing was created or sent")


def _start(draft: "Draft", target: "Target") -> int:
    found = draft.starts.get(target)
    return 0 if found is None else found.offset


def _draft_json(draft: "Draft", places: "Sequence[Placed]") -> dict[str, Any]:
    return {
        "dry_run": True,
        "records": sum(amount.rows for amount in draft.amounts.values()),
        "targets": [
            {
                "topic": target.topic,
                "partition": target.partition,
                "records": amount.rows,
                "bytes": amount.size,
                "from_ms": amount.from_ms,
                "to_ms": amount.to_ms,
                "offset": _start(draft, target),
            }
            for target, amount in draft.amounts.items()
        ],
        "creates": {name: {"partitions": one.partitions, "configs": one.configs} for name, one in draft.wanted.items()},
        "groups": [
            {
                "group": draft.request.group_prefix + one.group,
                "topic": one.target.topic,
                "partition": one.target.partition,
                "offset": _start(draft, one.target) + one.position,
            }
            for one in places
        ],
        "warnings": list(draft.warnings),
    }


def tell(summary: "Summary", as_json: bool) -> None:
    plan, seconds = summary.plan, max(summary.seconds, 1e-9)
    if not as_json:
        rest = summary.rows - summary.sent
        before = f" ({rest} were there already)" if rest else ""
        speed = f", {summary.sent / seconds:.0f} records/s" if summary.sent else ""
        print(f"replay {plan.id}: {count_text(summary.sent, 'record')} in {seconds:.1f} s{speed}{before}")
        for group, offsets in summary.groups.items():
            places = ", ".join(f"{topic}-{partition}: {at}" for (topic, partition), at in offsets.items())
            print(f"group {group}: {places}")
        return
    groups = [
        {"group": group, "topic": topic, "partition": partition, "offset": at}
        for group, offsets in summary.groups.items()
        for (topic, partition), at in offsets.items()
    ]
    starts = plan.starts()
    print_json(
        {
            "replay": plan.id,
            "records": summary.rows,
            "sent": summary.sent,
            "seconds": round(summary.seconds, 3),
            "targets": [
                {"topic": one.topic, "partition": one.partition, "records": count, "offset": starts[one].offset}
                for one, count in plan.counts().items()
            ],
            "groups": groups,
        }
    )
