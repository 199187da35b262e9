"""The limit of records per second, and the size of a batch."""

from kbroker.pipeline.archive.ingest.rate_limit import RateLimit, max_batch_records


def test_a_batch_waits_for_the_records_before_it():
    limit = RateLimit(rate=100)
    assert limit.delay_s(5.0) == 0
    limit.record_batch(250, 5.0)
    assert limit.delay_s(5.0) == 2.5
    assert limit.delay_s(7.0) == 0.5
    assert limit.delay_s(9.0) == 0


def test_unused_time_does_not_accumulate():
    limit = RateLimit(rate=100)
    limit.record_batch(100, 0.0)
    limit.record_batch(100, 60.0)
    assert limit.delay_s(60.0) == 1.0


def test_the_average_rate_is_never_exceeded():
    limit, now_s, records = RateLimit(rate=1000), 0.0, 0
    for size in (500, 2500, 10, 990, 4000):
        now_s += limit.delay_s(now_s)
        assert records <= 1000 * now_s + 1e-6
        limit.record_batch(size, now_s)
        records += size


def test_a_batch_has_at_most_what_the_rate_allows_in_an_interval():
    assert max_batch_records(None, None, 10) is None
    assert max_batch_records(500, None, 10) == 500
    assert max_batch_records(5000, 100, 10) == 1000
    assert max_batch_records(None, 0.01, 10) == 1
