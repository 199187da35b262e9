"""The names of files and directories in an archive."""

from kbroker.pipeline.archive.layout import (
    commit_path,
    data_name,
    is_writer_id,
    parse_data_path,
    parse_manifest_name,
    state_path,
    writer_id_of,
)
from kbroker.pipeline.archive.staging.owner import new_writer_id


def test_names_of_manifest_files() -> None:
    assert commit_path(17) == "_manifest/00000000000000000017.json"
    assert state_path(100) == "_manifest/00000000000000000100.state.json"
    assert parse_manifest_name("00000000000000000017.json") == (17, False)
    assert parse_manifest_name("00000000000000000100.state.json") == (100, True)
    for name in ("17.json", ".00000000000000000017.json.x.tmp", "00000000000000000017.jsonx", "x"):
        assert parse_manifest_name(name) is None


def test_names_of_data_files() -> None:
    assert parse_data_path("topic=a.b-c_1/date=2024-02-29/x.parquet") == ("a.b-c_1", "2024-02-29")
    writer_id = new_writer_id()
    assert is_writer_id(writer_id)
    assert not is_writer_id("data-0")
    assert data_name("0123456789ab", 7) == "0123456789ab-00007.parquet"
    assert writer_id_of(f"topic=t/date=2024-02-29/{data_name(writer_id, 123_456)}") == writer_id
    assert writer_id_of("topic=t/date=2024-02-29/part-00000.parquet") is None
