"""Reduces an exception of Spark to one sentence: the innermost cause, without stack traces and class names."""

import re
from collections.abc import Iterator
from typing import Any

MAX_CAUSES = 20
MAX_CHARACTERS = 500

# Causes with a better text than Java's; the innermost exception that matches one of them decides.
_KNOWN_CAUSES = (
    (re.compile(r"No space left on device|Disk quota exceeded|File too large"), "no space left on device"),
    (re.compile(r"OutOfMemoryError|Java heap space|GC overhead limit"),
     "Spark ran out of memory: give it more with --conf spark.driver.memory=8g"),
    (re.compile(r"Could not parse Master URL: '(.*)'"), "Spark does not know the master {0}"),
    (re.compile(r"UnknownTopicOrPartition|does not host this topic-partition"),
     "the topic or partition does not exist on the broker"),
    (re.compile(r"Timed out waiting for a node assignment|fetch topic metadata|Failed to update metadata|"
                r"TimeoutException: Timeout of \d+ms expired before (?:the position|successfully)"),
     "no broker responded in time"),
    (re.compile(r"No resolvable bootstrap urls"), "the host of the bootstrap address is unknown"),
    (re.compile(r"CONCURRENT_STREAM_LOG_UPDATE"), "another run uses the same checkpoint"),
    # The connector converts Kafka's milliseconds to Spark's microseconds.
    (re.compile(r"long overflow"), "a record's timestamp is later than Spark supports (the year 294247)"),
    (re.compile(r"Failed to find data source: kafka"), "the Kafka connector is not loaded"),
)  # fmt: skip
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}.*", re.DOTALL)
_CAUSED_BY = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_LOST_TASK = re.compile(r"Lost task [^\n]*?\(TID \d+\) \([^\n]*?\): ([^\n]+)")
_JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+([A-Z]\w*)(?:: |$)")
_PYTHON_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?:.*\n)*?(?=^\S)(?P<last>[\w.]+(?:: .*)?)$", re.MULTILINE
)
_KBROKER_ERROR = re.compile(r"(?:^|\s)kbroker\.[\w.]+Error: (.+)")


def error_text(error: BaseException) -> str:
    """Return one sentence on the cause of an exception of pyspark, py4j, Spark, Hadoop or Java."""
    chain = list(_messages(error))
    for text in reversed(chain):
        kbroker_errors = _KBROKER_ERROR.findall(text)
        if kbroker_errors:
            return shorten(str(kbroker_errors[-1]))
    for text in reversed(chain):
        for pattern, replacement in _KNOWN_CAUSES:
            match = pattern.search(text)
            if match:
                return shorten(replacement.format(*match.groups()))
    return next((cause for cause in map(_innermost_cause, reversed(chain)) if cause), type(error).__name__)


def is_spark_error(error: BaseException) -> bool:
    """Return whether `error_text` applies: the exception comes from pyspark or py4j."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def _messages(error: BaseException) -> Iterator[str]:
    """Return the messages of an exception and of its causes in Java, the outermost first."""
    yield str(error)
    throwable = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(MAX_CAUSES):
        if throwable is None:
            return
        text, throwable = _message_and_cause(throwable)
        if text:
            yield text


def _message_and_cause(throwable: Any) -> tuple[str, Any]:
    """Return a Throwable's message and cause from the JVM; nothing if the JVM has ended."""
    try:
        return str(throwable.toString()), throwable.getCause()
    except Exception:
        return "", None


def _innermost_cause(text: str) -> str:
    """Return the most specific line of a message that may contain stack traces."""
    python_errors = _PYTHON_TRACEBACK.findall(text)
    if python_errors:
        return shorten(python_errors[-1])
    causes = _CAUSED_BY.findall(text) or _LOST_TASK.findall(text)
    return shorten(causes[-1] if causes else _SQLSTATE.sub("", text).strip().partition("\n")[0])


def shorten(text: str) -> str:
    """Return one line of at most MAX_CHARACTERS, without Java's package names and Spark's SQLSTATE."""
    text = " ".join(_SQLSTATE.sub("", text).split())
    match = _JAVA_CLASS.match(text)
    if match:
        detail = text[match.end() :]
        # The class name helps only if there is no detail, or if the detail is a single word such as a path.
        text = f"{match[1]}: {detail}" if detail and " " not in detail else detail or match[1]
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " ..."
