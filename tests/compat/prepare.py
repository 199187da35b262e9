"""Downloads jars of Java programs and archives their classes.

`python -m tests.compat.prepare` runs before the tests. Within them, beside nine others, these would take minutes of the
first test that needs them, which has a limit of ten.
"""

from scripts.benchmark.peers import kafka_classpath
from tests.compat.java_programs import kafka_jvm
from tests.compat.spark.session import connector_packages, jvm_options
from tests.compat.zookeeper.server import archived_classes


def main() -> None:
    kafka_classpath()
    kafka_jvm()
    archived_classes()
    jvm_options()
    with connector_packages():
        pass


if __name__ == "__main__":
    main()
