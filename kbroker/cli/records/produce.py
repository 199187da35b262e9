"""`kbroker produce`: produce arguments, lines or JSON objects as records."""

import os
import select
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, BinaryIO

from kbroker.cli.common.client import admin_client, client_error_text
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, argument, option
from kbroker.cli.common.output import ProgressBar, print_note
from kbroker.cli.common.values import INT32, count_text
from kbroker.cli.records.formats import Header, ProducerRecord, parse_headers, record_from_json, record_from_line
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.producer import ACKS_ALL, BlockingProducer, DeliveryError, UnknownPartition
from kbroker.client.requests import BrokerError
from protocol.errors import ErrorCode
from protocol.records.compression import CODEC_NAMES, NONE

STDIN = 0
READ_BYTES = 256 << 10
_ACKS = {"0": 0, "1": 1, "all": ACKS_ALL, "-1": ACKS_ALL}


def produce(
    topic: Annotated[str, argument("TOPIC", complete=complete_topics)],
    values: Annotated[list[str] | None, argument("[VALUE...]", "Values of records; without any, read lines.")] = None,
    file: Annotated[str | None, option("--file -f FILE", "Read lines from this file, not from standard input.")] = None,
    as_json: Annotated[
        bool, option("--json", "Read each line as an object with key, value, headers, partition, timestamp.")
    ] = False,
    key: Annotated[str | None, option("--key -k KEY", "Key of records without one.")] = None,
    key_separator: Annotated[str | None, option("--key-separator -K SEP", "Read each line as KEY SEP VALUE.")] = None,
    header: Annotated[
        list[str] | None, option("--header -H NAME=VALUE", "Add a header to every record; repeatable.")
    ] = None,
    partition: Annotated[
        int | None,
        option("--partition -p PARTITION", "Partition of records without one.", max=INT32, show_default="by key"),
    ] = None,
    acks: Annotated[str, option("0|1|all", "Acknowledgements to wait for.")] = "all",
    compression: Annotated[str | None, option("--compression -z CODEC", "gzip, snappy, lz4, zstd or none.")] = None,
    quiet: Annotated[bool, option("--quiet -q", "Do not print the number of records.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Produce records to a topic, from arguments or from lines of a file or standard input.

    --json reads what `kbroker consume --json` prints. Only --json can express a null value (a tombstone).

    Example: echo 'k1:v1' | kbroker produce orders --key-separator :
    """
    if as_json and (key_separator is not None or values):
        raise usage_error("--json reads complete records: it excludes --key-separator and VALUE arguments")
    if values and file is not None:
        raise usage_error("use VALUE arguments or --file, not both")
    if key_separator == "":
        raise usage_error("--key-separator is empty")
    # A shell passes \t as two characters.
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode(errors="surrogateescape")
    headers = parse_headers(header or [])

    parse = record_from_json if as_json else partial(record_from_line, separator=separator)
    # Values that need no record of their own.
    is_plain = not as_json and separator is None and key is None and not headers and partition is None
    acks_number, codec = parse_acks(acks), parse_codec(compression)
    lines = (
        iter([[value.encode(errors="surrogateescape") for value in values]])
        if values
        else _read_lines(_open(file), interactive=file is None and os.isatty(STDIN))
    )
    with admin_client(bootstrap) as cluster:
        producer = BlockingProducer(cluster, acks=acks_number, codec=codec, on_topic=_note_topic)
        with _delivery_errors(producer):
            for some in lines:
                if not some:
                    producer.flush()
                elif is_plain:
                    producer.add_values(topic, some)
                else:
                    for line in some:
                        with _record_number_in_errors(producer):
                            _add(producer, topic, _with_defaults(parse(line), key, headers, partition))
            producer.flush()
    if not quiet:
        print_note(f"produced {count_text(producer.acknowledged, 'record')} to {topic}")


def _add(producer: BlockingProducer, topic: str, record: ProducerRecord) -> None:
    if record.key is None and record.value is None:
        raise CliError("a record needs a key or a value")
    producer.add(topic, record.key, record.value, record.headers, record.partition, record.timestamp)


@contextmanager
def _record_number_in_errors(producer: BlockingProducer) -> Iterator[None]:
    try:
        yield
    except (CliError, UnknownPartition) as error:
        producer.flush()
        raise CliError(f"record {producer.count + 1}: {error}") from None


@contextmanager
def _delivery_errors(producer: BlockingProducer) -> Iterator[None]:
    """Raise CliError with the number of the record, and how many are acknowledged."""
    try:
        yield
    except (DeliveryError, BrokerUnreachable) as error:
        acknowledged = count_text(producer.acknowledged, "record")
        raise CliError(f"{client_error_text(error)} ({acknowledged} acknowledged)") from None
    except BrokerError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise CliError(f"{error.subject} does not exist (create it with: kbroker topics create)") from None
        raise


def _note_topic(topic: str, partitions: int) -> None:
    print_note(f"created topic {topic} with {count_text(partitions, 'partition')}")


def parse_acks(text: str) -> int:
    if text not in _ACKS:
        raise usage_error(f"--acks must be 0, 1 or all, not {text!r}")
    return _ACKS[text]


def parse_codec(text: str | None) -> int:
    if text in (None, "none"):
        return NONE
    if text not in CODEC_NAMES[1:]:
        raise usage_error(f"--compression must be gzip, snappy, lz4, zstd or none, not {text!r}")
    return CODEC_NAMES.index(text)


def _with_defaults(
    record: ProducerRecord, key: str | None, headers: list[Header], partition: int | None
) -> ProducerRecord:
    if key is not None and record.key is None:
        record = record._replace(key=key.encode(errors="surrogateescape"))
    if partition is not None and record.partition is None:
        record = record._replace(partition=partition)
    return record._replace(headers=record.headers + headers) if headers else record


def _open(path: str | None) -> BinaryIO:
    try:
        return open(path, "rb") if path is not None else open(STDIN, "rb", closefd=False)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None


def _read_lines(source: BinaryIO, interactive: bool) -> Iterator[Sequence[bytes]]:
    """Yield lines without their line ends; no line when all that can be read for now has been.

    An empty line is a record with an empty value.
    """
    if interactive:
        print_note("enter one record per line; end with Ctrl-D")
    status = os.fstat(source.fileno())
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    with source, ProgressBar("producing", size, shows_bytes=True, enabled=not interactive) as progress:
        # The beginning of a line, in pieces.
        begun: list[bytes] = []
        try:
            while data := os.read(source.fileno(), READ_BYTES):
                head, newline, rest = data.rpartition(b"\n")
                begun.append(head if newline else rest)
                if newline:
                    lines = b"".join(begun).split(b"\n")
                    yield [line.removesuffix(b"\r") for line in lines]
                    begun = [rest] if rest else []
                progress.advance(len(data))
                if size is None and not select.select([source], [], [], 0)[0]:
                    yield []
        except OSError as error:
            raise CliError(f"cannot read: {error.strerror}") from None
        if begun:
            yield [b"".join(begun).removesuffix(b"\r")]
