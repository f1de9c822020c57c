"""Fixtures `s3_bucket` and `gcs_bucket`: URLs of empty buckets that the environment leads to."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.s3.gcs_server import GcsServer

if TYPE_CHECKING:
    from tests.s3.s3_server import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Serve S3 for all tests of the session."""
    from tests.s3.s3_server import S3Server  # moto takes two seconds that other tests need not pay

    with S3Server() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make an empty bucket; the process's credentials and endpoint are the server's."""
    import s3fs  # a second of imports that other tests need not pay

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-id-of-tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}"
    s3_server.before_request = None
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def gcs_server() -> Iterator[GcsServer]:
    """Serve an empty Google Cloud Storage."""
    with GcsServer() as server:
        yield server


@pytest.fixture
def gcs_bucket(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make an empty bucket; the process's endpoint is the server's."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.endpoint)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    import gcsfs  # after the environment is set, which it reads at its import

    gcsfs.GCSFileSystem.clear_instance_cache()
    gcs_server.buckets["bucket"] = {}
    yield "gs://bucket"
    gcsfs.GCSFileSystem.clear_instance_cache()
