"""Google Cloud Storage on loopback: the part of its JSON API that gcsfs uses, in memory.

Objects have generations, and ifGenerationMatch is honored under one lock.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
import uuid
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_OBJECTS = re.compile(r"(/upload|/download)?/storage/v1/b/([^/]+)/o(?:/(.+))?")
_STAMP = "2026-01-01T00:00:00.000Z"


class _Failure(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class GcsServer:
    """A server in a thread."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, dict[str, Any]]] = {}
        self.uploads: dict[str, dict[str, Any]] = {}
        self.lock = threading.RLock()
        self._generations = itertools.count(1_000)
        handler = type("Handler", (_Handler,), {"gcs": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        """Its URL."""

    def __enter__(self) -> GcsServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(
        self, bucket: str, name: str, data: bytes, generation: str | None = None
    ) -> dict[str, Any]:
        """Store an object; with a generation only over that one, "0" meaning that none is there."""
        with self.lock:
            objects = self.buckets.setdefault(bucket, {})
            now = objects[name]["generation"] if name in objects else "0"
            if generation not in (None, now):
                raise _Failure(412, "conditionNotMet")
            objects[name] = {
                "kind": "storage#object", "name": name, "bucket": bucket,
                "generation": str(next(self._generations)), "metageneration": "1",
                "size": str(len(data)), "contentType": "application/octet-stream",
                "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
                "timeCreated": _STAMP, "updated": _STAMP, "data": data,
            }  # fmt: skip
            return objects[name]

    def get(self, bucket: str, name: str) -> dict[str, Any]:
        """Return an object."""
        with self.lock:
            if name not in self.buckets.get(bucket, {}):
                raise _Failure(404, f"No such object: {bucket}/{name}")
            return self.buckets[bucket][name]


class _Handler(BaseHTTPRequestHandler):
    gcs: GcsServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused: Any) -> None:
        """Print nothing."""

    def _any(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        try:
            if upload := re.fullmatch(r"/resumable/(\w+)", url.path):
                self._continue(upload[1], body)
            elif found := _OBJECTS.fullmatch(url.path):
                name = unquote(found[3]) if found[3] else ""
                self._object(found[1] or "", unquote(found[2]), name, query, body)
            else:
                raise _Failure(404, url.path)
        except _Failure as failure:
            text = {"error": {"code": failure.status, "message": str(failure), "errors": []}}
            self._answer(failure.status, text)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any

    def _body(self) -> bytes:
        if (self.headers.get("Transfer-Encoding") or "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _object(
        self, kind: str, bucket: str, name: str, query: dict[str, str], body: bytes
    ) -> None:
        if kind == "/upload":
            self._upload(bucket, query, body)
        elif not name:
            self._list(bucket, query)
        elif self.command == "DELETE":
            self.gcs.get(bucket, name)
            with self.gcs.lock:
                del self.gcs.buckets[bucket][name]
            self._answer(204, b"")
        elif kind == "/download" or query.get("alt") == "media":
            self._media(self.gcs.get(bucket, name))
        else:
            self._answer(200, _facts(self.gcs.get(bucket, name)))

    def _upload(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        generation = query.get("ifGenerationMatch")
        if query["uploadType"] == "multipart":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            message = BytesParser().parsebytes(head + body)
            facts, data = (part.get_payload(decode=True) for part in message.get_payload())  # type: ignore[union-attr]
            name = json.loads(facts)["name"]
            self._answer(200, _facts(self.gcs.put(bucket, name, data, generation)))
        elif query["uploadType"] == "resumable":
            name = query.get("name") or json.loads(body)["name"]
            key = uuid.uuid4().hex
            self.gcs.uploads[key] = {"place": (bucket, name, generation), "data": bytearray()}
            self._answer(200, b"", {"Location": f"{self.gcs.endpoint}/resumable/{key}"})
        else:
            self._answer(200, _facts(self.gcs.put(bucket, query["name"], body, generation)))

    def _continue(self, key: str, body: bytes) -> None:
        upload = self.gcs.uploads[key]
        upload["data"] += body
        total = (self.headers.get("Content-Range") or "/*").rpartition("/")[2]
        if total != "*" and len(upload["data"]) >= int(total):
            bucket, name, generation = upload["place"]
            facts = self.gcs.put(bucket, name, bytes(upload["data"]), generation)
            self._answer(200, _facts(facts))
        else:
            self._answer(308, b"", {"Range": f"bytes=0-{len(upload['data']) - 1}"})

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, folders = [], set()
        with self.gcs.lock:
            if bucket not in self.gcs.buckets:
                raise _Failure(404, f"bucket {bucket}")
            for name, facts in sorted(self.gcs.buckets[bucket].items()):
                rest = name.removeprefix(prefix)
                if name.startswith(prefix) and delimiter and delimiter in rest:
                    folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                elif name.startswith(prefix):
                    items.append(_facts(facts))
        listing = {"kind": "storage#objects", "items": items, "prefixes": sorted(folders)}
        self._answer(200, listing)

    def _media(self, facts: dict[str, Any]) -> None:
        data, headers, status = facts["data"], {}, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted and data:
            start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
            if start > end:
                raise _Failure(416, "range")
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            data, status = data[start : end + 1], 206
        self._answer(status, data, headers)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _facts(stored: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stored.items() if key != "data"}
