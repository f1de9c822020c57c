"""Fixtures that several rooms' tests share."""

pytest_plugins = ["tests.hub.fixtures", "tests.s3.fixtures"]
