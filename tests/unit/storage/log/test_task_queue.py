"""The order of a log's background tasks."""

from kbroker.storage.log.durability import SerialTaskQueue
from tests.unit.support.log_lab import Background


class Tasks(SerialTaskQueue):
    def __init__(self, background: Background) -> None:
        super().__init__(background)
        self.failures: list[OSError] = []

    def on_failure(self, error: OSError) -> None:
        self.failures.append(error)


def test_tasks_run_one_at_a_time_in_order() -> None:
    background = Background()
    background.hold = True
    tasks = Tasks(background)
    called: list[object] = []

    def fail() -> int:
        raise OSError("no")

    tasks.when_idle(lambda: called.append("idle at once"))
    tasks.add_task(lambda: 1, called.append)
    tasks.add_task(fail, called.append)
    tasks.add_task(lambda: 2, called.append)
    tasks.when_idle(lambda: called.append("idle"))
    assert len(background.held) == 1
    background.run()
    assert called == ["idle at once", 1, 2, "idle"]
    assert [str(failure) for failure in tasks.failures] == ["no"]
    tasks.add_task(lambda: 3, called.append)
    background.run()
    assert called[-1] == 3
