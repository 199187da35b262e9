"""A limit of records per second, and the size of a batch."""

from kbroker.pipeline.archive.ingest.rate_limit import RateLimit, batch_size


def test_a_batch_waits_until_those_before_it_are_paid_for():
    pace = RateLimit(rate=100)
    assert pace.wait(5.0) == 0
    pace.took(250, 5.0)
    assert pace.wait(5.0) == 2.5
    assert pace.wait(7.0) == 0.5
    assert pace.wait(9.0) == 0


def test_time_that_was_not_used_is_not_saved_up():
    pace = RateLimit(rate=100)
    pace.took(100, 0.0)
    pace.took(100, 60.0)
    assert pace.wait(60.0) == 1.0


def test_the_rate_holds_over_any_run():
    pace, now, records = RateLimit(rate=1000), 0.0, 0
    for size in (500, 2500, 10, 990, 4000):
        now += pace.wait(now)
        assert records <= 1000 * now + 1e-6
        pace.took(size, now)
        records += size


def test_a_batch_is_what_the_rate_allows_in_an_interval():
    assert batch_size(None, None, 10) is None
    assert batch_size(500, None, 10) == 500
    assert batch_size(5000, 100, 10) == 1000
    assert batch_size(None, 0.01, 10) == 1
