"""Failures of Spark in one sentence: a user wants the cause, not the path that it took through two languages."""

import re
from collections.abc import Iterator
from typing import Any

MOST_CAUSES = 20
MOST_CHARACTERS = 500

# The first that fits the innermost causes says it better than Java does.
_KNOWN = (
    (re.compile(r"No space left on device|Disk quota exceeded|File too large"), "no space left on device"),
    (re.compile(r"OutOfMemoryError|Java heap space|GC overhead limit"),
     "Spark ran out of memory: give it more with --conf spark.driver.memory=8g"),
    (re.compile(r"Could not parse Master URL: '(.*)'"), "{0} is no master that Spark knows"),
    (re.compile(r"UnknownTopicOrPartition|does not host this topic-partition"),
     "the topic or partition does not exist on the broker"),
    (re.compile(r"Timed out waiting for a node assignment|fetch topic metadata|Failed to update metadata|"
                r"TimeoutException: Timeout of \d+ms expired before (?:the position|successfully)"),
     "no broker answered in time"),
    (re.compile(r"No resolvable bootstrap urls"), "the host of the bootstrap address is not known"),
    (re.compile(r"CONCURRENT_STREAM_LOG_UPDATE"), "another run goes on from the same checkpoint, and only one may"),
    # Of the connector, from Kafka's milliseconds to Spark's microseconds.
    (re.compile(r"long overflow"), "a record's timestamp is later than Spark can tell (the year 294247)"),
    (re.compile(r"Failed to find data source: kafka"), "the Kafka connector is not loaded"),
)  # fmt: skip
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}.*", re.DOTALL)
_CAUSED_BY = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_LOST_TASK = re.compile(r"Lost task [^\n]*?\(TID \d+\) \([^\n]*?\): ([^\n]+)")
_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+([A-Z]\w*)(?:: |$)")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:.*\n)*?(?=^\S)(?P<last>[\w.]+(?:: .*)?)$", re.MULTILINE)
_OURS = re.compile(r"(?:^|\s)kbroker\.[\w.]+Error: (.+)")


def explain(error: BaseException) -> str:
    """One sentence on what failed: Spark's, py4j's, Hadoop's and Java's exceptions by their innermost cause."""
    chain = list(_messages(error))
    for text in reversed(chain):
        ours = _OURS.findall(text)
        if ours:
            return sentence(str(ours[-1]))
    for text in reversed(chain):
        for pattern, words in _KNOWN:
            match = pattern.search(text)
            if match:
                return sentence(words.format(*match.groups()))
    return next((told for told in map(_innermost, reversed(chain)) if told), type(error).__name__)


def is_sparks(error: BaseException) -> bool:
    """Whether it came out of Spark or the way to it, and `explain` has something to say about it."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def _messages(error: BaseException) -> Iterator[str]:
    """What was said from the outside in."""
    yield str(error)
    origin = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    seen = 0
    while origin is not None and seen < MOST_CAUSES:
        text, origin = _asked(origin)
        seen += 1
        if text:
            yield text


def _asked(throwable: Any) -> tuple[str, Any]:
    """A Java exception's text and its cause, over py4j, whose other end may be gone."""
    try:
        return str(throwable.toString()), throwable.getCause()
    except Exception:
        return "", None


def _innermost(text: str) -> str:
    """The telling line of a message that may hold stack traces."""
    traces = _PYTHON.findall(text)
    if traces:
        return sentence(traces[-1])
    causes = _CAUSED_BY.findall(text) or _LOST_TASK.findall(text)
    return sentence(causes[-1] if causes else _SQLSTATE.sub("", text).strip().partition("\n")[0])


def sentence(text: str) -> str:
    """One line of bearable length, without Java's packages and Spark's codes."""
    text = " ".join(_SQLSTATE.sub("", text).split())
    match = _CLASS.match(text)
    if match:
        rest = text[match.end() :]
        # An exception's name says something only where there is nothing else, or where the rest is a bare name.
        text = f"{match[1]}: {rest}" if rest and " " not in rest else rest or match[1]
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " ..."
