"""`kbroker archive relocate`: after an archive was moved or copied."""

from typing import Annotated

from kbroker.cli.common.options import argument, pipeline_errors
from kbroker.cli.common.output import print_note
from kbroker.cli.common.values import count_text


def relocate(directory: Annotated[str, argument("DIR")]) -> None:
    """Adapt an archive to its new place after it was moved or copied.

    The metadata of a table names its files by absolute paths. This command writes new metadata with the paths in DIR,
    and keeps the current snapshot only. No other process may use the archive meanwhile. It does nothing if the paths
    are right.

    Example: kbroker archive relocate /mnt/copy-of-archive
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.catalogs.relocation import relocate as relocate_archive

    topics: list[str] = []

    def advance(topic: str) -> None:
        topics.append(topic)
        print_note(topic)

    with pipeline_errors():
        relocate_archive(open_archive(directory), advance)
    print(f"adapted {count_text(len(topics), 'topic')} to {directory}" if topics else "all paths are right")
