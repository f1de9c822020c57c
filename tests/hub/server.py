"""A hub on this machine that speaks enough of the protocol for the real huggingface_hub client.

    hub = LocalHub(); sha = hub.add_repo("org/data", "dataset", {"a.jsonl": b"..."})
    with hub.serving() as endpoint: ...          # HF_ENDPOINT=endpoint

Run one by hand: python -m tests.hub.server --root DIR --port N
DIR holds {models,datasets}/<owner>/<name>/<files>.
"""

import argparse
import contextlib
import hashlib
import http.server
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from tests.hub.content import (
    CHUNK_BYTES,
    Blob,
    Fault,
    Repo,
    Request,
    make_blob,
    sibling,
    tree_entry,
)
from tests.hub.uploads import UploadRoutes

__all__ = ["Blob", "Fault", "LocalHub", "Repo", "Request", "make_blob"]

_PAGE = 100
_API = re.compile(r"/api/(model|dataset)s/([^/]+/[^/]+)/(revision|tree|paths-info)/([^/]+)(?:/.*)?")
_INFO = re.compile(r"/api/(model|dataset)s/([^/]+/[^/]+)")
_RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class LocalHub:
    """Repositories, faults and the request log of one server."""

    def __init__(self, tokens: tuple[str, ...] = ()) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.faults: dict[str, Fault] = {}
        self.requests: list[Request] = []
        self.objects: dict[str, bytes] = {}
        self.tokens = tokens
        self.hanging = threading.Event()
        self.released = threading.Event()
        self.lock = threading.Lock()

    def add_repo(
        self,
        repo: str,
        repo_type: str,
        files: dict[str, bytes | Path],
        revision: str | None = None,
        private: bool = False,
        *,
        gated: bool = False,
        ref: str = "main",
        lfs_bytes: int = 1 << 20,
    ) -> str:
        """Add a commit, point `ref` at it and return its 40 hex digits."""
        blobs = {name: make_blob(content, lfs_bytes) for name, content in sorted(files.items())}
        key = repr([repo, repo_type, [(n, b.sha256) for n, b in blobs.items()]])
        sha = revision or hashlib.sha1(key.encode()).hexdigest()
        entry = self.repos.setdefault((repo_type, repo), Repo())
        entry.commits[sha], entry.refs[ref] = blobs, sha
        entry.private, entry.gated = private, gated
        return sha

    def can_write(self, token: str, path: str) -> bool:
        """Return whether a token may write; an object's address is itself the right to send it."""
        return token in self.tokens or path.startswith("/lfs/")

    def fail(self, name: str, **fault: int | bool | str) -> None:
        """Make the next GETs of a file go wrong; see Fault."""
        self.faults[name] = Fault(**fault)

    def take_fault(self, name: str) -> Fault:
        """Return the fault due now, or one that does nothing."""
        with self.lock:
            fault = self.faults.get(name)
            if fault is None or fault.times < 1:
                return Fault()
            if fault.skip:
                fault.skip -= 1
                return Fault()
            fault.times -= 1
            return fault

    @contextlib.contextmanager
    def serving(self, port: int = 0) -> Iterator[str]:
        """Yield the endpoint of a running server."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        server.daemon_threads = True
        server.hub = self
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(UploadRoutes, http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  name of the base
        """Keep quiet; the hub has its own log."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self) -> None:
        hub: LocalHub = self.server.hub
        url = urllib.parse.urlsplit(self.path)
        self.body = self._read_body()
        auth = self.headers.get("Authorization")
        path = urllib.parse.unquote(url.path)
        hub.requests.append(Request(self.command, path, self.headers.get("Range"), bool(auth)))
        token = (auth or "").removeprefix("Bearer ")
        if auth and token not in hub.tokens:
            message = "Invalid credentials in Authorization header"
            return self._refuse(401, "", message)
        if self.command in ("POST", "PUT") and not path.startswith("/api/datasets/"):
            if "/paths-info/" not in path and not hub.can_write(token, path):
                return self._refuse(403, "", "You need a token that may write")
            if self.answer_write(path):
                return None
        api, info, resolve = (form.fullmatch(path) for form in (_API, _INFO, _RESOLVE))
        if api:
            repo_type, repo, verb, rev = api.groups()
        elif info:
            repo_type, repo, verb, rev = info[1], info[2], "revision", "main"
        elif resolve:
            repo_type, verb = ("dataset" if resolve[1] else "model"), "resolve"
            repo, rev = resolve[2], resolve[3]
        else:
            return self._refuse(404, "", "No such route")
        entry = hub.repos.get((repo_type, repo))
        if entry is None or (entry.private and not auth):
            status = 404 if auth else 401
            return self._refuse(status, "RepoNotFound", "Repository not found")
        if entry.gated and verb != "revision":
            return self._refuse(403 if auth else 401, "GatedRepo", "Access is restricted")
        sha = entry.refs.get(rev, rev)
        if sha not in entry.commits:
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        files = entry.commits[sha]
        if verb == "resolve":
            return self._send_file(sha, resolve[4], files.get(resolve[4]))
        return self._send_api((repo_type, repo), verb, sha, files, urllib.parse.parse_qs(url.query))

    def _refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        body = json.dumps({"error": message}).encode()
        named = {"X-Error-Code": code} if code else {}
        self._head(status, len(body), {**named, "X-Error-Message": message, **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_api(
        self,
        key: tuple[str, str],
        verb: str,
        sha: str,
        files: dict[str, Blob],
        query: dict[str, list[str]],
    ) -> None:
        kind, repo = key
        fault = self.server.hub.take_fault("")
        if fault.status:
            return self._fail_status(fault)
        headers = {"Content-Type": "application/json", "X-Repo-Commit": sha}
        entries = [tree_entry(name, blob) for name, blob in files.items()]
        if verb == "revision":
            siblings = [sibling(entry) for entry in entries]
            value = {"id": repo, "modelId": repo, "sha": sha, "siblings": siblings, "tags": []}
            value["private"] = self.server.hub.repos[kind, repo].private
        elif verb == "paths-info":
            text = self.body.decode()
            form = json.loads(text) if text[:1] == "{" else urllib.parse.parse_qs(text)
            value = [e for e in entries if e["path"] in form.get("paths", [])]
        else:
            start = int(query.get("cursor", ["0"])[0])
            value = entries[start : start + _PAGE]
            if start + _PAGE < len(entries):
                base = f"http://{self.headers['Host']}{urllib.parse.urlsplit(self.path).path}"
                headers["Link"] = f'<{base}?recursive=True&cursor={start + _PAGE}>; rel="next"'
        body = json.dumps(value).encode()
        self._head(200, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)
        return None

    def _fail_status(self, fault: Fault) -> None:
        extra = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else {}
        self._refuse(fault.status, "", "Try later", **extra)

    def _send_file(self, sha: str, name: str, blob: Blob | None) -> None:
        if blob is None:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        fault = self.server.hub.take_fault(name) if self.command == "GET" else Fault()
        if fault.redirect_to:
            return self._refuse(302, "", "Found", Location=fault.redirect_to + self.path)
        if fault.status:
            return self._fail_status(fault)
        etag = blob.sha256 if blob.is_lfs else blob.git_sha1
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if blob.is_lfs:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(blob.size)}
        size = blob.size if fault.truncate_to is None else fault.truncate_to
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
        if asked and start >= size:
            return self._refuse(416, "", "Range", **{"Content-Range": f"bytes */{size}"})
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._head(206 if asked else 200, end - start, headers)
        if self.command != "HEAD":
            self._send_bytes(blob, start, end, fault)
        return None

    def _send_bytes(self, blob: Blob, start: int, end: int, fault: Fault) -> None:
        limits = [n for n in (fault.drop_after, fault.hang_after) if n is not None]
        left = min([end - start, *limits])
        with blob.open() as stream, contextlib.suppress(ConnectionError):
            stream.seek(start)
            while left:
                chunk = stream.read(min(left, CHUNK_BYTES))
                left -= len(chunk)
                self.wfile.write(bytes(255 - b for b in chunk) if fault.wrong_bytes else chunk)
        if fault.hang_after is not None:
            self.server.hub.hanging.set()
            self.server.hub.released.wait(60)
        if limits:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Serve the folders below --root until interrupted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    hub = LocalHub()
    for kind in ("model", "dataset"):
        for folder in sorted((args.root / f"{kind}s").glob("*/*")):
            found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
            repo = str(folder.relative_to(args.root / f"{kind}s"))
            print(kind, repo, hub.add_repo(repo, kind, found), flush=True)
    with hub.serving(args.port) as endpoint, contextlib.suppress(KeyboardInterrupt):
        print(endpoint, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
