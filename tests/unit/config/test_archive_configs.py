"""Where the archive of a topic may be."""

import pytest

from kbroker.config.archive_configs import check_archive_table
from kbroker.config.topic_config import validate_topic_configs
from kbroker.config.values import ConfigError


@pytest.mark.parametrize(
    ("table", "allowed", "has_authorizer"),
    [
        ("/data/archive", (), False),
        ("/data/archive#other", (), False),
        ("file:///data/archive", ("/data",), True),
        ("/data/archive", ("/data/archive/",), True),
        ("/a", ("/",), True),
        ("s3://bucket/a", ("/data", "s3://bucket"), True),
        ("catalog:prod/kafka", ("catalog:prod",), False),
    ],
)
def test_allowed(table: str, allowed: tuple[str, ...], has_authorizer: bool) -> None:
    check_archive_table(table, allowed, has_authorizer=has_authorizer)


@pytest.mark.parametrize(
    ("table", "allowed", "has_authorizer", "text"),
    [
        ("/data/archive", (), True, "must name the location '/data/archive'"),
        ("relative/archive", (), False, "must name the location"),
        ("s3://bucket/a", (), False, "must name the location"),
        ("/database", ("/data",), False, "is not below"),
        ("/data/../etc", ("/data",), False, "'/etc' is not below"),
        ("s3://bucket/a/../../other", ("s3://bucket/a",), False, "is not below"),
        ("#t", (), False, "must be LOCATION"),
        ("/data#", (), False, "must be LOCATION"),
    ],
)
def test_refused(table: str, allowed: tuple[str, ...], has_authorizer: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_archive_table(table, allowed, has_authorizer=has_authorizer)


@pytest.mark.parametrize("name", ["kbroker.archive.earliest", "kbroker.archive.before.delete"])
def test_configs_that_need_a_table(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} requires kbroker.archive.table"):
        validate_topic_configs({name: "true"})
    validate_topic_configs({name: "true", "kbroker.archive.table": "/a"})
    validate_topic_configs({name: "false"})
