"""Walks the headers of records for the features of queues, which find their options in them."""

from collections.abc import Callable, Collection, Sequence

from kbroker.common import Buffer
from kbroker.replica.produce.record_rules import (
    MAX_RECORD_ERRORS,
    SLICE,
    InvalidRecordsError,
    RecordErrors,
    invalid_record,
)
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader
from protocol.records.record import MIN_RECORD_BYTES, Header, decode_headers, decode_varint

# Called with the offset delta and the headers of a record, and its bounds in the decompressed records. May raise
# InvalidHeaderError.
VisitRecord = Callable[[int, Sequence[Header], int, int], None]


class InvalidHeaderError(Exception):
    """The headers of a record are invalid. The message has the reason."""


def check_names(headers: Sequence[Header], names: Collection[bytes]) -> None:
    """Raise InvalidHeaderError for a header whose name is one of these upper-case names in other case.

    It would have no effect, which nobody would notice.
    """
    for name, _ in headers:
        if name not in names and name.upper() in names:
            expected, found = name.upper().decode(), name.decode()
            raise InvalidHeaderError(f"The header must be named {expected}, not {found}: names are case-sensitive.")


def walk_headers(body: Buffer, header: BatchHeader, visit: VisitRecord, pause: Callable[[], None]) -> None:
    """Call `visit` for each record of a produced batch that has headers, in order. Calls `pause` after each slice.

    Raises InvalidRecordsError with the records for which `visit` has raised InvalidHeaderError, and
    KafkaError(INVALID_RECORD) for malformed records, and for records whose offset deltas are not consecutive: such a
    batch could not be rewritten with fewer records.
    """
    errors: RecordErrors = []
    try:
        _walk(body, header, visit, errors, pause, has_gaps=False)
    except MalformedError as error:
        raise invalid_record(f"Malformed records: {error}.") from None
    raise_record_errors(errors)


def walk_stored_headers(body: Buffer, header: BatchHeader, visit: VisitRecord) -> None:
    """Like `walk_headers`, in turns, for a batch of the log, which may lack records. Raises MalformedError.

    Invalid headers are ignored: they were stored before the topic had the feature.
    """
    _walk(body, header, visit, [], yield_if_due, has_gaps=True)


def raise_record_errors(errors: RecordErrors) -> None:
    """Raise InvalidRecordsError if there are errors."""
    if errors:
        message = f"One or more records have been rejected due to record errors: {errors[0][1]}"
        raise InvalidRecordsError(ErrorCode.INVALID_RECORD, message, errors)


def _walk(
    body: Buffer,
    header: BatchHeader,
    visit: VisitRecord,
    errors: RecordErrors,
    pause: Callable[[], None],
    *,
    has_gaps: bool,
) -> None:
    end = len(body)
    pos, left = 0, SLICE
    try:
        for index in range(header.count):
            left -= 1
            if left <= 0:
                pause()
                left = SLICE
            begin = pos
            size, start = decode_varint(body, pos)
            pos = start + size
            if size < MIN_RECORD_BYTES - 1 or pos > end:
                raise MalformedError(f"record of {size} bytes in {end - start} bytes")
            _, at = decode_varint(body, start + 1, 10)
            offset_delta, at = decode_varint(body, at)
            if offset_delta != index and not has_gaps:
                raise MalformedError(f"record {index} has offset delta {offset_delta}")
            for _ in range(2):
                size, at = decode_varint(body, at)
                if size > 0:
                    at += size
            if at == pos - 1 and body[at] == 0:
                continue
            # The headers of one record are at most MAX_HEADERS.
            headers, at = decode_headers(body, at, pos)
            left -= len(headers)
            if at != pos:
                raise MalformedError(f"record ends {pos - at} bytes before its length says")
            try:
                visit(offset_delta, headers, begin, pos)
            except InvalidHeaderError as error:
                if len(errors) < MAX_RECORD_ERRORS:
                    errors.append((index, str(error)))
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if pos != end:
        raise MalformedError(f"{end - pos} bytes remain after {header.count} records")
