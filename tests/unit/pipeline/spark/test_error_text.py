"""One sentence for exceptions of Spark and Java."""

from typing import Any

import pytest

from kbroker.pipeline.spark.error_text import error_text, is_spark_error


class Throwable:
    """A Java exception as py4j represents it."""

    def __init__(self, text: str, cause: "Throwable | None" = None) -> None:
        self._text, self._cause = text, cause

    def toString(self) -> str:
        return self._text

    def getCause(self) -> "Throwable | None":
        return self._cause


class JavaError(Exception):
    def __init__(self, text: str, *chain: str) -> None:
        super().__init__(text)
        origin = None
        for text in reversed(chain):
            origin = Throwable(text, origin)
        self.java_exception: Any = origin


TASK = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, "
    "most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): "
    "java.lang.IllegalStateException: odd\n"
    "\tat a.B.c(B.scala:1)\nDriver stacktrace:"
)
BATCH = (
    "py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: "
    "Traceback (most recent call last):\n"
    '  File "x.py", line 1, in call\n    f()\n'
    "kbroker.pipeline.errors.PipelineError: /data: no space left on device; archived records stay readable\n"
)
WORKER = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in main\n    process()\n'
    '  File "job.py", line 3, in f\n    return 1 / x\n           ~~^~~\nZeroDivisionError: division by zero\n'
)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (["outer", "org.apache.spark.SparkException: Job aborted.", "java.io.IOException: No space left on device"],
         "no space left on device"),
        (["x", "java.lang.RuntimeException: a", "java.lang.OutOfMemoryError: Java heap space"],
         "Spark ran out of memory: give it more with --conf spark.driver.memory=8g"),
        (["x", "java.net.ConnectException: Connection refused to host"], "Connection refused to host"),
        (["x", "java.io.FileNotFoundException: /a/b"], "FileNotFoundException: /a/b"),
        (["x", "java.lang.NullPointerException"], "NullPointerException"),
        ([TASK], "IllegalStateException: odd"),
        (["query failed", BATCH], "/data: no space left on device; archived records stay readable"),
        (["query failed", WORKER], "ZeroDivisionError: division by zero"),
        (["x", "org.apache.spark.SparkException: Could not parse Master URL: 'foo'"],
         "Spark does not know the master foo"),
        (["[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]"],
         "[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found."),
        (["x", "java.lang.ArithmeticException: long overflow"],
         "a record's timestamp is later than Spark supports (the year 294247)"),
        (["[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 6."],
         "another run uses the same checkpoint"),
        (["a" * 2000], "a" * 500 + " ..."),
        ([""], "JavaError"),
    ],
)  # fmt: skip
def test_error_text_is_the_innermost_cause(chain: list[str], expected: str):
    assert error_text(JavaError(*chain)) == expected


def test_error_text_after_the_jvm_has_ended():
    class DeadThrowable:
        def toString(self) -> str:
            raise ConnectionRefusedError

    error = JavaError("the message")
    error.java_exception = DeadThrowable()
    assert error_text(error) == "the message"


def test_error_text_of_a_cyclic_cause():
    error = JavaError("outside", "java.lang.Error: a cyclic cause")
    error.java_exception._cause = error.java_exception
    assert error_text(error) == "a cyclic cause"


def test_is_spark_error():
    assert not is_spark_error(ValueError("mine"))
    errors = pytest.importorskip("pyspark.errors")
    assert is_spark_error(errors.AnalysisException("x"))
