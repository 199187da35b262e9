"""`kbroker archive convert`: make an archive of the earlier format one of tables."""

from dataclasses import asdict

import typer

from kbroker.cli.common.errors import print_error
from kbroker.cli.common.options import AsJson, Directory, pipeline_errors
from kbroker.cli.common.output import ProgressBar, print_json
from kbroker.cli.common.values import count_text


def convert(directory: Directory, as_json: AsJson = False) -> None:
    """Convert an archive of an earlier version (with a directory _manifest) to tables, in the same place.

    Needs as much space again until it ends. If it is killed, run it again: it continues. Old files are deleted only
    after everything was committed and compared. A damaged file is reported and kept, its offsets are recorded as lost,
    and the exit status is 1: `kbroker archive repair` fetches again what the broker still has. Replays that were begun
    before cannot be continued.

    Example: kbroker archive convert /data/archive
    """
    from kbroker.archive.catalogs import create_archive
    from kbroker.archive.maintenance.conversion import convert as convert_archive
    from kbroker.archive.storage import open_storage

    with pipeline_errors(), ProgressBar("converting", None, shows_bytes=True) as progress:
        result = convert_archive(
            open_storage(directory),
            lambda committed_only: create_archive(directory, {"committed_only": committed_only}, converts=True),
            progress.advance,
        )
    if as_json:
        print_json(asdict(result))
    else:
        print(
            f"converted {count_text(result.topics, 'topic')} with {count_text(result.rows, 'record')}: "
            f"{count_text(result.files_before, 'file')} became {result.files_after}"
        )
    for path, problem in sorted(result.damaged.items()):
        print_error(f"{path}: {problem}; its records are not in the tables")
    if result.damaged:
        raise typer.Exit(1)
