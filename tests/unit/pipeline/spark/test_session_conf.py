"""The Spark properties of a session."""

from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.session_conf import is_local, parse_conf, session_conf

GIB = 1 << 30


def make_conf(master: str | None = None, memory: int = 8 * GIB, cores: int = 2, **conf: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in conf.items()}
    return session_conf("job", master, ["/jars/a.jar", "/jars/b.jar"], named, memory, cores)


def test_a_local_session_listens_on_the_loopback_address_only():
    properties = make_conf()
    assert properties["spark.master"] == "local[*]"
    assert properties["spark.driver.host"] == properties["spark.driver.bindAddress"] == "127.0.0.1"
    assert properties["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert (properties["spark.ui.enabled"], properties["spark.sql.session.timeZone"]) == ("false", "UTC")


@pytest.mark.parametrize(("gib", "mib"), [(1, 1024), (3, 1536), (8, 4096), (64, 4096)])
def test_the_driver_gets_half_of_the_memory_within_bounds(gib: int, mib: int):
    assert make_conf(memory=gib * GIB)["spark.driver.memory"] == f"{mib}m"


def test_shuffle_partitions_follow_the_cores():
    assert make_conf(cores=2)["spark.sql.shuffle.partitions"] == "4"
    assert make_conf(cores=16)["spark.sql.shuffle.partitions"] == "16"


def test_a_cluster_keeps_its_own_settings():
    properties = make_conf("spark://host:7077")
    assert properties["spark.master"] == "spark://host:7077"
    for name in ("spark.driver.host", "spark.driver.memory", "spark.sql.shuffle.partitions"):
        assert name not in properties


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[4]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_is_local(master: str, local: bool):
    assert is_local(master) is local


def test_conf_overrides_defaults_and_the_master_option_overrides_conf():
    conf = {"spark.driver.memory": "9g", "spark.sql.session.timeZone": "CET", "spark.ui.enabled": "true"}
    properties = session_conf("job", None, [], {**conf, "spark.master": "local[3]"}, GIB, 1)
    assert conf.items() <= properties.items()
    assert properties["spark.master"] == "local[3]"
    assert make_conf("local[1]", spark_master="local[3]")["spark.master"] == "local[1]"


def test_jars_and_java_options_of_conf_are_added():
    properties = make_conf(spark_jars="/mine.jar")
    assert properties["spark.jars"] == "/jars/a.jar,/jars/b.jar,/mine.jar"
    options = make_conf(spark_driver_extraJavaOptions="-XX:+UseSerialGC")["spark.driver.extraJavaOptions"].split()
    assert len(options) == 2
    assert options[0].startswith("-Dlog4j2.configurationFile=file:///")
    assert options[1] == "-XX:+UseSerialGC"


def test_the_log_configuration_exists():
    option = make_conf()["spark.driver.extraJavaOptions"].split()[0]
    assert Path(option.partition("=file://")[2]).is_file()


@pytest.mark.parametrize("option", ["spark.x", "x=1", "=", ""])
def test_a_setting_that_is_not_a_spark_property_is_an_error(option: str):
    with pytest.raises(PipelineError, match="--conf must be NAME=VALUE"):
        parse_conf([option])


def test_conf_is_split_at_the_first_equals_sign():
    assert parse_conf(["spark.a=1", "spark.b=x=y", "spark.a=", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}
