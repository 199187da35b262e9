"""`kbroker log`: looking at the files of a data directory. Nothing here writes or asks a broker.

What reads the files is imported when it is wanted: other commands need none of it.
"""

from typing import Annotated

import typer

from kbroker.cli.common.options import AsJson

app = typer.Typer()


@app.command("dump")
def dump(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", show_default=False)],
    records: Annotated[
        bool, typer.Option("--records", "--deep", help="The records in each batch; of internal topics, decoded.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="The records with their keys, values and headers.")] = False,
    offsets: Annotated[
        str | None, typer.Option(metavar="A..B", help="Only what reaches these offsets; either may be left out.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="At most so many lines of each file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in files of a data directory: segments, indexes, snapshots, checkpoints; of a directory, all.

    Damage is told with its place, and what follows it is shown where it can be read; the exit status is 1 then.
    With --json there is one JSON object a line.
    """
    from kbroker.cli.log.dump import Dump, offset_range
    from kbroker.cli.log.segments import Wanted
    from kbroker.runtime.disk import RealDisk

    wanted = Wanted(records or values, values, None if offsets is None else offset_range(offsets))
    damaged = Dump(RealDisk(), wanted, most, as_json).run(paths)
    raise typer.Exit(1 if damaged else 0)


@app.command("verify")
def verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check a data directory, or one partition's, and change nothing.

    Every batch, the indexes, the producers' snapshots, leader epochs and checkpoints, and whether they say the same.
    Says what the next start of the broker would do. The exit status is 1 when there is a problem.
    """
    from kbroker.cli.log.verify import Verification
    from kbroker.runtime.disk import RealDisk

    raise typer.Exit(1 if Verification(RealDisk(), directory.rstrip("/") or "/", as_json).run() else 0)
