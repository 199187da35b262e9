"""The output of Spark's JVM. No JVM is started."""

import pytest

from kbroker.pipeline.spark.jvm import failure_line


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Invalid maximum heap size: -Xmxabc", "Error: Could not create the Java Virtual Machine."],
         "Invalid maximum heap size: -Xmxabc"),
        (["WARNING: x", 'Exception in thread "main" org.apache.spark.SparkException: Master must be', "\tat a.B"],
         "Master must be"),
        (["something", "java.lang.OutOfMemoryError: Java heap space"], "Java heap space"),
        ([], "it printed nothing"),
    ],
)  # fmt: skip
def test_the_failure_line_of_a_jvm(lines: list[str], expected: str):
    assert failure_line(lines) == expected
