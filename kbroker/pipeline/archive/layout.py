"""The names of files and directories in an archive (pure).

    _manifest/NNNNNNNNNNNNNNNNNNNN.json            a commit
    _manifest/NNNNNNNNNNNNNNNNNNNN.state.json      the archive state after that commit
    _spark_metadata/                               the committed files in the format of Spark's file sink
    _staging/WRITER/                               files that a writer has not committed yet
    _checkpoint/                                   Spark's checkpoint of `archive run`
    topic=T/date=YYYY-MM-DD/WRITER-NNNNN.parquet   rows

Readers that do not use the manifest, such as pyarrow, ignore names that begin with `_` or `.`.
"""

import re

MANIFEST = "_manifest"
SPARK_METADATA = "_spark_metadata"
STAGING = "_staging"
CHECKPOINT = "_checkpoint"
# Spark's directory name for a null value.
NULL_TOPIC = "__HIVE_DEFAULT_PARTITION__"

_MANIFEST_NAME = re.compile(r"(\d{20})(\.state)?\.json")
_DATA_PATH = re.compile(
    r"topic=([A-Za-z0-9._-]{1,249})/date=([+-]?\d{4,}-\d\d-\d\d)/[A-Za-z0-9][A-Za-z0-9._-]*\.parquet"
)
_WRITER_ID = re.compile("[0-9a-f]{12}")
_DATA_NAME = re.compile(rf"({_WRITER_ID.pattern})-\d{{5,}}\.parquet")


def commit_path(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.json"


def state_path(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.state.json"


def parse_manifest_name(name: str) -> tuple[int, bool] | None:
    """Return the commit number and whether the file is a state file; None for other files."""
    match = _MANIFEST_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match[2] is not None)


def parse_data_path(path: str) -> tuple[str, str] | None:
    """Return topic and date of a data file; None for a path that no archive writer creates."""
    match = _DATA_PATH.fullmatch(path)
    return None if match is None or match[1] == NULL_TOPIC else (match[1], match[2])


def data_name(writer_id: str, number: int) -> str:
    return f"{writer_id}-{number:05d}.parquet"


def is_writer_id(name: str) -> bool:
    return _WRITER_ID.fullmatch(name) is not None


def writer_id_of(path: str) -> str | None:
    """Return the id of the writer that created a data file; None for a file that no archive writer named."""
    match = _DATA_NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else match[1]


def staging_directory(writer_id: str) -> str:
    return f"{STAGING}/{writer_id}"


def owner_path(writer_id: str) -> str:
    return f"{STAGING}/{writer_id}/owner.json"
