"""`kbroker archive expire`: delete old records of an archive."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from kbroker.cli.archive.compact import KeepReplaced
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import AsJson, Directory, TopicNames, option, pipeline_errors
from kbroker.cli.common.output import print_json
from kbroker.cli.common.values import count_text, format_size, parse_date, parse_duration_ms


def expire(
    directory: Directory,
    before: Annotated[str | None, option("--before YYYY-MM-DD", "Delete records of the days before this one.")] = None,
    older_than: Annotated[
        str | None, option("--older-than DURATION", "Delete records of days that ended this long ago, such as 365d.")
    ] = None,
    topic: TopicNames = None,
    keep_replaced: KeepReplaced = None,
    dry_run: Annotated[bool, option("--dry-run", "Print what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete records of old days (UTC), by their timestamps.

    Whole files are removed, in one commit for each topic; the archive records the offsets as expired. The files of
    running readers are deleted by the next run of maintenance, with --keep-replaced 0s at once.

    Example: kbroker archive expire /data/archive --older-than 365d
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.decoding.dead_letters import tables_with_dead_letters
    from kbroker.archive.maintenance.expiry import ExpiryResult, expire_topic, expired_files
    from kbroker.archive.maintenance.upkeep import clean_up

    now_ms = time.time_ns() // 1_000_000
    if (before is None) == (older_than is None):
        raise usage_error("name either --before or --older-than")
    if before is not None:
        before_ms = round(datetime.fromisoformat(parse_date(before)).replace(tzinfo=UTC).timestamp() * 1000)
    else:
        before_ms = now_ms - parse_duration_ms(older_than or "")
    keep_ms = None if keep_replaced is None else parse_duration_ms(keep_replaced)
    result = ExpiryResult()
    with pipeline_errors():
        for table in tables_with_dead_letters(open_archive(directory), topic or ()):
            if dry_run:
                files = expired_files(table, before_ms)
                result.topics += bool(files)
                result.files += len(files)
                result.rows += sum(file.rows for file in files)
                result.bytes += sum(file.size for file in files)
            else:
                expire_topic(table, before_ms, result)
                result.deleted += clean_up(table, now_ms, keep_ms)
    if as_json:
        print_json(asdict(result))
        return
    print(
        f"{'would expire' if dry_run else 'expired'} {count_text(result.rows, 'record')} of "
        f"{count_text(result.topics, 'topic')}, in {count_text(result.files, 'file')} of {format_size(result.bytes)}"
    )
    if result.deleted:
        print(f"deleted {count_text(result.deleted, 'file')} that nothing needs any more")
