"""An S3 server on loopback."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "archives"
SECRET = "my-secret"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve an empty bucket, and yield the URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="me", aws_secret_access_key=SECRET
    )
    client.create_bucket(Bucket=BUCKET)
    try:
        yield url
    finally:
        moto.stop()
