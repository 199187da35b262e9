"""`kbroker archive retry`: decode dead letters again."""

import time
from typing import Annotated

import typer

from kbroker.cli.common.decode_options import DecodeOptions, read_decode_options
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.options import AsJson, Directory, TopicNames, option
from kbroker.cli.common.output import print_json, print_table


def retry(
    directory: Directory,
    topic: TopicNames = None,
    infer: Annotated[
        bool, option("--infer", "Add the fields of dead letters to a JSON schema that was inferred.")
    ] = False,
    as_json: AsJson = False,
    *,
    decode: DecodeOptions,
) -> None:
    """Decode the dead letters of an archive again, after their schema was mended.

    Records that can be decoded now get their columns in the topic's table, and are no dead letters anymore. Options of
    decoding replace those of the topics. The archive can be read and written at the same time. The exit status is 1 if
    there are still dead letters.

    Example: kbroker archive retry /data/archive --topic orders --value avro --schema orders.avsc
    """
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.decoding.dead_letters import dead_letter_topics
    from kbroker.archive.decoding.retry import retry_dead_letters
    from kbroker.archive.errors import ArchiveError

    settings, now_ms = read_decode_options(decode), time.time_ns() // 1_000_000
    try:
        archive = open_archive(directory)
        results = {
            name: retry_dead_letters(archive, name, now_ms, settings, decode.registry, infer)
            for name in topic or dead_letter_topics(archive)
        }
    except ArchiveError as error:
        raise CliError(str(error)) from None
    if as_json:
        print_json([{"topic": name, **result._asdict()} for name, result in results.items()])
    else:
        print_table(
            ("topic", "decoded", "remaining"),
            [(name, result.decoded, result.remaining) for name, result in results.items()],
        )
    if any(result.remaining for result in results.values()):
        raise typer.Exit(1)
