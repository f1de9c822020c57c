"""S3 on loopback: moto, with writes one at a time, so that conditional writes are atomic."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

Environ = dict[str, Any]


class S3Server:
    """A server in a thread; all tests of a process share what moto stores, so use new buckets."""

    def __init__(self) -> None:
        self.before_request: Callable[[Environ], None] | None = None
        """Called before each request, outside the lock: a test may change objects there."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.RLock()
        self._server: BaseWSGIServer = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet
        )
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        """Its URL."""

    def __enter__(self) -> S3Server:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, environ: Environ, start: Any) -> Iterable[bytes]:
        # The body is read before the lock is taken: a slow client must not hold up the others.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if self.before_request is not None:
            self.before_request(environ)
        with self._lock:
            refusal = self._refusal(environ)
            if refusal is not None:
                status, text = refusal
                start(
                    status,
                    [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))],
                )
                return [text]
            return [b"".join(self._app(environ, start))]

    def _refusal(self, environ: Environ) -> tuple[str, bytes] | None:
        """Check the conditions that moto itself passes over: of copies and of finished uploads."""
        absent, match = environ.get("HTTP_IF_NONE_MATCH"), environ.get("HTTP_IF_MATCH")
        finishes = environ["REQUEST_METHOD"] == "POST" and "uploadId=" in environ["QUERY_STRING"]
        if not (absent or match) or not (finishes or "HTTP_X_AMZ_COPY_SOURCE" in environ):
            return None
        now = self._etag(environ)
        if absent == "*" and now:
            return _error("412 Precondition Failed", "PreconditionFailed", "If-None-Match")
        if match and now is None:
            return _error("404 Not Found", "NoSuchKey", "If-Match")
        if match and (now or "").strip('"') != match.strip('"'):
            return _error("412 Precondition Failed", "PreconditionFailed", "If-Match")
        return None

    def _etag(self, environ: Environ) -> str | None:
        head = {
            key: value
            for key, value in environ.items()
            if not key.startswith(("HTTP_IF_", "HTTP_X_AMZ_COPY"))
        }
        head.pop("werkzeug.request", None)
        path = environ.get("REQUEST_URI", "").split("?")[0]
        head |= {"REQUEST_METHOD": "HEAD", "QUERY_STRING": "", "CONTENT_LENGTH": "0"}
        head |= {"RAW_URI": path, "REQUEST_URI": path, "wsgi.input": io.BytesIO()}
        seen: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], unused: Any = None) -> None:
            seen["status"], seen["headers"] = status, {k.lower(): v for k, v in headers}

        list(self._app(head, start))
        return seen["headers"].get("etag") if seen["status"].startswith("200") else None


def _error(status: str, code: str, condition: str) -> tuple[str, bytes]:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message><Condition>{condition}</Condition></Error>"
    return status, f"<?xml version='1.0'?>{text}".encode()


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *unused: Any) -> None:
        """Print nothing."""
