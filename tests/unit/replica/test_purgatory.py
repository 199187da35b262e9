"""Purgatory: whoever comes first, the condition or the deadline, answers; nobody else does."""

from kbroker.replica.purgatory import DelayedOperation, Purgatory


class Waiting(DelayedOperation):
    def __init__(self, deadline_ms: int, answers: list[str], name: str) -> None:
        super().__init__(deadline_ms)
        self.answers = answers
        self.name = name

    def expire(self) -> None:
        if self.finish():
            self.answers.append(f"{self.name} expired")

    def complete(self, purgatory: Purgatory) -> None:
        if self.finish():
            purgatory.completed()
            self.answers.append(f"{self.name} completed")


def test_deadlines_fall_due_in_order_and_completed_operations_do_not_expire() -> None:
    purgatory, answers = Purgatory(), []
    late = Waiting(300, answers, "late")
    early = Waiting(100, answers, "early")
    middle = Waiting(200, answers, "middle")
    for operation in (late, early, middle):
        purgatory.watch(operation)
    assert purgatory.next_deadline_ms() == 100
    middle.complete(purgatory)
    assert len(purgatory) == 2
    assert purgatory.expire(99) == 0
    assert purgatory.expire(250) == 1
    assert purgatory.next_deadline_ms() == 300
    assert purgatory.expire(300) == 1
    assert answers == ["middle completed", "early expired", "late expired"]
    assert purgatory.next_deadline_ms() is None


def test_an_expired_operation_cannot_complete_any_more() -> None:
    purgatory, answers = Purgatory(), []
    operation = Waiting(10, answers, "one")
    purgatory.watch(operation)
    purgatory.expire(10)
    operation.complete(purgatory)
    assert answers == ["one expired"]
    assert len(purgatory) == 0


def test_operations_that_complete_early_do_not_pile_up() -> None:
    purgatory, answers = Purgatory(), []
    for number in range(10_000):
        operation = Waiting(1_000_000 + number, answers, "quick")
        purgatory.watch(operation)
        operation.complete(purgatory)
        assert len(purgatory) == 0
        assert len(purgatory._heap) <= 130
    assert len(answers) == 10_000
