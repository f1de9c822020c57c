"""Fetching files of a hub revision: several at a time, resumed in place, every byte verified."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neve import storage

from steps import _hub

PARTS_NAME = ".neve-parts"
_NUM_THREADS = 4


class StoppedError(RuntimeError):
    """Another file failed, so this one is given up."""


def part_names(name: str) -> tuple[str, str]:
    """Return where an unfinished file may lie: our own place, and that of other tools beside it."""
    return f"{PARTS_NAME}/{name}", f"{name}.incomplete"


def fetch_all(
    source: _hub.Source,
    files: list[_hub.RemoteFile],
    output_path: str,
    taken: frozenset[str],
    received: Callable[[int], None],
) -> None:
    """Fetch a few files at a time; the first failure stops the others.

    Args:
        source: Where they lie.
        files: What to fetch.
        output_path: Local path or URL.
        taken: Names of all files of the output; none of them is mistaken for an unfinished one.
        received: Called with the number of new bytes, from several threads.

    Raises:
        InputError: The hub refuses a file.
        DownloadError: A file's bytes are still wrong or absent after several tries.
    """
    stop = threading.Event()

    def fetch(file: _hub.RemoteFile) -> None:
        target = storage.join(output_path, file.name)
        if storage.is_local(output_path):
            part = _take_part(Path(storage.local_path(output_path)), file.name, taken)
            received(part.stat().st_size if part.exists() else 0)
            fetch_file(client, source, file, part, stop=stop, received=received)
            final = Path(storage.local_path(target))
            final.parent.mkdir(parents=True, exist_ok=True)
            part.replace(final)
            return
        with storage.scratch_dir() as folder:
            part = folder / "file"
            fetch_file(client, source, file, part, stop=stop, received=received)
            storage.upload_file(part, target)

    with (
        open_client(source) as client,
        concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool,
    ):
        try:
            for future in concurrent.futures.as_completed([pool.submit(fetch, f) for f in files]):
                future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    storage.remove_tree(storage.join(output_path, PARTS_NAME))


def _take_part(root: Path, name: str, taken: frozenset[str]) -> Path:
    """Return the part file below PARTS_NAME; one that another tool left becomes it."""
    own, foreign = part_names(name)
    part = root / own
    part.parent.mkdir(parents=True, exist_ok=True)
    if foreign not in taken and (root / foreign).is_file():
        (root / foreign).replace(part)
    return part


@contextlib.contextmanager
def open_client(source: _hub.Source) -> Iterator[Any]:
    """Yield an HTTP client; it drops the token when a redirect leaves the hub's host."""
    import httpx  # optional at plan time
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers(token=source.token or False) | {"accept-encoding": "identity"}
    with httpx.Client(headers=headers, follow_redirects=True, timeout=60) as client:
        yield client


def fetch_file(
    client: Any,
    source: _hub.Source,
    file: _hub.RemoteFile,
    part: Path,
    *,
    stop: threading.Event,
    received: Callable[[int], None],
) -> None:
    """Leave the verified bytes of one file at `part`, going on where an earlier try ended.

    Args:
        client: From `open_client`; may be shared between threads.
        source: Where it lies.
        file: What the listing says.
        part: Local file; what it holds already is kept and verified with the rest.
        stop: Set by the caller to give up early.
        received: Called with the number of new bytes, negative where some were dropped.

    Raises:
        DownloadError: The bytes are still wrong or absent after several tries.
    """
    import httpx  # optional at plan time
    from huggingface_hub.errors import HfHubHTTPError

    tries, best = 0, -1
    while True:
        response = None
        try:
            reason = _fetch_once(client, source, file, part, stop, received)
            if not reason:
                return
        except HfHubHTTPError as error:
            response = error.response
            reason = f"HTTP {response.status_code}"
            if not response.history:  # after a redirect a refusal is of an address that expires
                mistake = _hub.explain_refusal(error, source)
                if mistake is not None:
                    raise mistake from None  # the cause holds request headers
                if response.status_code != 429 and response.status_code < 500:
                    tries = _hub.MAX_TRIES
        except httpx.TransportError as error:
            reason = f"a broken connection ({type(error).__name__})"
        have = part.stat().st_size if part.exists() else 0
        tries = 1 if have > best and tries < _hub.MAX_TRIES else tries + 1
        best = max(best, have)
        if tries >= _hub.MAX_TRIES:
            rule = f"{file.size} bytes with digest {file.digest} must arrive, got {reason}"
            raise _hub.DownloadError(f"{source} file {file.name!r}: {rule}. Run again to continue.")
        if stop.wait(_hub.retry_seconds(response, tries)):
            raise StoppedError(file.name)


def _fetch_once(
    client: Any,
    source: _hub.Source,
    file: _hub.RemoteFile,
    part: Path,
    stop: threading.Event,
    received: Callable[[int], None],
) -> str:
    """Return what was wrong with the file after one request, empty if nothing."""
    from huggingface_hub import hf_hub_url

    part.touch()
    if part.stat().st_size < file.size or (file.size == 0 and part.stat().st_size):
        url = hf_hub_url(
            source.repo,
            file.name,
            repo_type=source.repo_type,
            revision=source.revision,
            endpoint=source.endpoint,
        )
        have = part.stat().st_size
        headers = {"Range": f"bytes={have}-"} if have else {}
        with client.stream("GET", url, headers=headers) as response:
            _append(response, source, have, part, stop, received)
    size = part.stat().st_size
    if size < file.size:
        return f"{size} bytes"
    with part.open("rb") as stream:
        if size == file.size and _hub.has_digest(stream, file):
            return ""
    part.unlink()
    received(-size)
    return f"{size} bytes with another digest"


def _append(
    response: Any,
    source: _hub.Source,
    have: int,
    part: Path,
    stop: threading.Event,
    received: Callable[[int], None],
) -> None:
    from huggingface_hub.utils import hf_raise_for_status

    if response.status_code == 416:
        part.unlink()
        received(-have)
        part.touch()
        return
    if response.is_error:
        response.read()
    hf_raise_for_status(response)
    commits = {r.headers.get("X-Repo-Commit") for r in [*response.history, response]} - {None}
    if commits - {source.revision}:
        got = ", ".join(sorted(commits))
        raise _hub.DownloadError(
            f"{source}: files must come from that commit, got {got}. Report it."
        )
    goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if have and not (response.status_code == 206 and goes_on):
        received(-have)
        have = 0
    with part.open("ab" if have else "wb") as target:
        for chunk in response.iter_raw(_hub.CHUNK_BYTES):
            target.write(chunk)
            received(len(chunk))
            if stop.is_set():
                raise StoppedError(part.name)
