"""`kbroker archive erase`: delete the records of a key from an archive."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import AsJson, Directory, TopicNames, Yes, option, pipeline_errors
from kbroker.cli.common.output import ProgressBar, confirm, print_json
from kbroker.cli.common.values import count_text


def erase(
    directory: Directory,
    key: Annotated[list[str] | None, option("--key KEY", "Erase records with this key; repeatable.")] = None,
    key_hex: Annotated[
        list[str] | None, option("--key-hex HEX", "The same for a key that is not text; repeatable.")
    ] = None,
    topic: TopicNames = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase all records with a key, from all topics or some.

    Files with such records are written again without them, and the old files are deleted at once, so a reader that
    began earlier fails. The archive records the offsets as erased. The log of the broker is not changed: records that
    it still has are archived again only if they are not archived yet. If a file is damaged, it is reported and left,
    and the exit status is 1.

    Example: kbroker archive erase /data/archive --key customer-17
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.decoding.dead_letters import tables_with_dead_letters
    from kbroker.archive.maintenance.erasure import ErasureResult, erase_keys
    from kbroker.archive.maintenance.upkeep import clean_up

    try:
        keys = {text.encode() for text in key or ()} | {bytes.fromhex(text) for text in key_hex or ()}
    except ValueError:
        raise usage_error("--key-hex is not hexadecimal") from None
    if not keys:
        raise usage_error("name a key with --key or --key-hex")
    result = ErasureResult()
    with pipeline_errors():
        tables = tables_with_dead_letters(open_archive(directory), topic or ())
        confirm(f"Erase {count_text(len(keys), 'key')} from {count_text(len(tables), 'table')}?", yes)
        total = sum(file.size for table in tables for file in table.files())
        with ProgressBar("searching", total, shows_bytes=True) as progress:
            for table in tables:
                erase_keys(table, keys, result, progress.advance)
                result.deleted += clean_up(table, time.time_ns() // 1_000_000, 0)
    if as_json:
        print_json(asdict(result))
    else:
        searched = count_text(result.searched, "file")
        print(f"erased {count_text(result.records, 'record')} from {result.files} of {searched}")
    for path, problem in sorted(result.damaged.items()):
        print_error(f"{path}: {problem}; it was not searched, first mend it with: kbroker archive repair")
    if result.kept_by:
        raise CliError(
            f"branches or tags of tables may still have the records: {', '.join(sorted(set(result.kept_by)))}"
        )
    if result.damaged:
        raise typer.Exit(1)
