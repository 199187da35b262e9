"""`kbroker log`: dump and verify the files of a data directory. Nothing here writes, or sends requests to a broker."""

from typing import Annotated

import typer

from kbroker.cli.common.options import AsJson, argument, option

app = typer.Typer()


@app.command("dump")
def dump(
    paths: Annotated[list[str], argument("PATH...")],
    records: Annotated[
        bool, option("--records --deep", "Print the records of each batch, decoded for internal topics.")
    ] = False,
    values: Annotated[bool, option("--values", "Print records with keys, values and headers.")] = False,
    offsets: Annotated[
        str | None, option("A..B", "Print items within these offsets only; A or B may be omitted.")
    ] = None,
    max_items: Annotated[int | None, option("--max N", "Print at most N items of each file.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Print the contents of segments, indexes, snapshots and checkpoints.

    PATH is a file or a directory. Damage is printed with its position, followed by everything readable after it; the
    exit status is then 1. With --json, prints one JSON object per line.

    Example: kbroker log dump kbroker-data/orders-0 --records --offsets 100..200
    """
    from kbroker.cli.log.dump import Dump, parse_offset_range
    from kbroker.cli.log.items import DumpSelection
    from kbroker.runtime.real_disk import RealDisk

    selection = DumpSelection(records or values, values, None if offsets is None else parse_offset_range(offsets))
    found_damage = Dump(RealDisk(), selection, max_items, as_json).run(paths)
    raise typer.Exit(1 if found_damage else 0)


@app.command("verify")
def verify(directory: Annotated[str, argument("DIR")], as_json: AsJson = False) -> None:
    """Verify a data directory, or the directory of one partition, without changing it.

    Checks every batch, the indexes, producer snapshots, leader epochs and checkpoints, and whether they agree. Prints
    what the next start of the broker would repair. The exit status is 1 if there is a problem.
    """
    from kbroker.cli.log.verify import DirectoryVerifier
    from kbroker.runtime.real_disk import RealDisk

    raise typer.Exit(1 if DirectoryVerifier(RealDisk(), directory.rstrip("/") or "/", as_json).run() else 0)
