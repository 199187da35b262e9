"""A live dashboard: the sales of each shop in the last hour, as a page with charts that Spark keeps up to date.

    kbroker pipeline run dashboard.py SALES PAGE CHECKPOINT

SALES is a topic with values such as {"shop": "north", "amount": 12.5}; the page counts records that are not like that.
SIGTERM ends the program after the current batch. The next start continues from CHECKPOINT, a directory.
"""

import html
import json
import os
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

MINUTES = 60  # that the page shows
WIDTH, HEIGHT, BAR = 720, 120, 12  # of a chart, in pixels

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 46em; margin: 2em auto; color-scheme: light dark; }
svg { width: 100%; background: color-mix(in srgb, currentColor 6%, transparent); }
rect { fill: steelblue; }
td { padding-right: 2em; font-variant-numeric: tabular-nums; }
"""

Rows = dict[tuple[int, str | None], tuple[int, float]]  # (minute since 1970, shop): (records, amount)


def chart(amounts: dict[int, float], last: int, highest: float) -> str:
    """Return a bar for each minute, the last one on the right. `highest`: the amount at the upper edge."""
    bars = []
    for minute, amount in sorted(amounts.items()):
        x, height = WIDTH - BAR * (1 + last - minute), HEIGHT * max(amount, 0) / highest
        label = f"<title>{datetime.fromtimestamp(minute * 60, UTC):%H:%M}: {amount:,.2f}</title>"
        bars.append(f'<rect x="{x}" y="{HEIGHT - height:.1f}" width="{BAR - 1}" height="{height:.1f}">{label}</rect>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(bars)}</svg>'


def page(rows: Rows) -> str:
    """Return the page. The shop is None for records that are no sales."""
    last = max(minute for minute, _ in rows)
    highest = max([amount for _, amount in rows.values() if amount > 0], default=1.0)
    parts = [f"<h1>Sales until {datetime.fromtimestamp(last * 60, UTC):%Y-%m-%d %H:%M} UTC</h1>"]
    for shop in sorted({shop for _, shop in rows if shop is not None}):
        own = {minute: row for (minute, name), row in rows.items() if name == shop}
        count, amount = sum(row[0] for row in own.values()), sum(row[1] for row in own.values())
        name = html.escape(shop)
        parts.append(f"<h2>{name}</h2>\n<table><tr><td>{count} sales</td><td>{amount:.2f}</td></tr></table>")
        parts.append(chart({minute: row[1] for minute, row in own.items()}, last, highest))
    parts.append(f"<p>{sum(count for (_, shop), (count, _) in rows.items() if shop is None)} records are no sales.</p>")
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>Sales</title><style>{STYLE}</style>'
    return f"<!doctype html>\n<html><head>{head}</head><body>\n" + "\n".join(parts) + "\n</body></html>\n"


def replace(path: Path, text: str) -> None:
    """Write a file. Readers see the former or the new one, and never half of it."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


def update(path: Path, batch: DataFrame) -> None:
    """Apply the rows that a batch has changed. Each replaces its predecessor, so a repeated batch does no harm."""
    data = path.with_name(f"{path.name}.json")
    rows: Rows = {(minute, shop): (n, amount) for minute, shop, n, amount in json.loads(_text(data) or "[]")}
    rows |= {(row.minute, row.shop): (row.records, row.amount or 0.0) for row in batch.collect()}
    if not rows:
        return
    last = max(minute for minute, _ in rows)
    rows = {key: row for key, row in rows.items() if key[0] > last - MINUTES}
    replace(data, json.dumps([[*key, *row] for key, row in rows.items()]))
    replace(path, page(rows))
    print(f"{path} is up to date", flush=True)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def main(topic: str, path: Path, checkpoint: str) -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    sales = (
        SparkSession.builder.getOrCreate()
        .readStream.format("kafka")
        .options(**json.loads(os.environ["KBROKER_KAFKA_OPTIONS"]))  # set by `kbroker pipeline run`
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .withColumn("sale", F.from_json(F.col("value").cast("string"), "shop STRING, amount DOUBLE"))
        .withColumn("shop", F.when(F.col("sale.amount").isNotNull(), F.col("sale.shop")))
        # Spark forgets minutes that the page does not show any more.
        .withWatermark("timestamp", f"{MINUTES} minutes")
        .groupBy(F.window("timestamp", "1 minute"), "shop")
        .agg(
            F.count("*").alias("records"),
            F.sum(F.when(F.col("shop").isNotNull(), F.col("sale.amount"))).alias("amount"),
        )
        .select((F.unix_seconds("window.start") / 60).cast("long").alias("minute"), "shop", "records", "amount")
    )
    query = (
        sales.writeStream.foreachBatch(lambda batch, _: update(path, batch))
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="2 seconds")
        .start()
    )
    while not stopping.is_set() and not query.awaitTermination(1):  # raises the error of a query that has failed
        continue
    query.stop()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: kbroker pipeline run dashboard.py SALES PAGE CHECKPOINT")
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
