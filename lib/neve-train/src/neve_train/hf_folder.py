"""Weights of a Hugging Face folder, written and read one tensor at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from ml_dtypes import bfloat16
from neve import storage

from neve_train.errors import TrainInputError

__all__ = [
    "MAX_SHARD_BYTES",
    "WEIGHTS",
    "TensorShape",
    "iter_tensors",
    "shard_names",
    "write_weights",
]

MAX_SHARD_BYTES = 5_000_000_000
"""Largest file of weights unless one tensor alone is larger, as Levanter and transformers have it."""
WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TYPES = {
    "BF16": np.dtype(bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_WRITE_BYTES = 64 << 20


class TensorShape(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    """Sizes of the axes."""
    dtype: np.dtype[Any]
    """Type of its values."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def cast(self, dtype: str) -> TensorShape:
        """The same with another floating type; whole numbers keep theirs."""
        kind = np.dtype(bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
        is_float = self.dtype.kind == "f" or self.dtype == bfloat16
        return TensorShape(self.shape, kind) if is_float else self


Entry = tuple[str, TensorShape]


def write_weights(
    tensors: Mapping[str, Callable[[], np.ndarray]],
    shapes: Mapping[str, TensorShape],
    output_path: str,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """The folder holds all tensors as safetensors, with an index if there are several files.

    At no time is there more than one tensor in memory, in the type it is read in. A file appears
    when it is whole; weights of an earlier export, which readers might take instead, go first.

    Args:
        tensors: Name -> function that reads the tensor.
        shapes: Name -> its shape, and the type to write; values are rounded to the nearest.
        output_path: Local or remote.
        max_shard_bytes: Largest file, 1 or more; a larger tensor has a file of its own.
        on_progress: Told (bytes done, bytes of all tensors).

    Returns:
        Number of parameters.
    """
    shards = _split([(name, shapes[name]) for name in tensors], max_shard_bytes)
    total, done = sum(shapes[name].num_bytes for name in tensors), 0
    weight_map: dict[str, str] = {}
    _remove_weights(output_path)
    for number, shard in enumerate(shards, 1):
        file_name = WEIGHTS
        if len(shards) > 1:
            file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map.update((name, file_name) for name, _ in shard)
        with storage.open_file(storage.join(output_path, file_name), "wb") as file:
            file.write(_header(shard))
            for name, shape in shard:
                _write(file, name, tensors[name](), shape)
                done += shape.num_bytes
                on_progress(done, total)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        storage.write_json(storage.join(output_path, _INDEX), index)
    return sum(math.prod(shapes[name].shape) for name in tensors)


def shard_names(folder: str) -> dict[str, list[str]]:
    """Returns file -> names of its tensors, as the index or the single file's header has them.

    Raises:
        TrainInputError: The folder holds no safetensors.
    """
    index = storage.join(folder, _INDEX)
    if storage.exists(index):
        files: dict[str, list[str]] = {}
        for name, file_name in storage.read_json(index)["weight_map"].items():
            files.setdefault(file_name, []).append(name)
        return files
    single = storage.join(folder, WEIGHTS)
    if not storage.exists(single):
        raise TrainInputError(
            f"model {folder}: must hold {WEIGHTS} or {_INDEX}, got neither. Pass a Hugging Face "
            "folder with weights."
        )
    with storage.open_file(single) as file:
        return {WEIGHTS: list(_read_header(file, single)[0])}


def iter_tensors(folder: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields name and values of every tensor, one in memory at a time.

    Raises:
        TrainInputError: A file is missing, is cut off, or lacks a tensor of the index.
    """
    for file_name, wanted in shard_names(folder).items():
        path = storage.join(folder, file_name)
        if not storage.exists(path):
            raise TrainInputError(
                f"model {folder}: must hold {file_name} of its index, got none. Export it again."
            )
        with storage.open_file(path) as file:
            entries, start = _read_header(file, path)
            lacking = sorted(set(wanted) - set(entries))
            if lacking:
                raise TrainInputError(
                    f"model {path}: must hold the index's {len(wanted)} tensors, got all but "
                    f"{len(lacking)}, such as {lacking[0]}. Export it again."
                )
            for name, entry in entries.items():
                begin, end = entry["data_offsets"]
                file.seek(start + begin)
                data = file.read(end - begin)
                if len(data) < end - begin:
                    raise TrainInputError(
                        f"model {path}: must hold {end - begin:,} bytes of {name}, got "
                        f"{len(data):,}. Export it again."
                    )
                yield name, np.frombuffer(data, _TYPES[entry["dtype"]]).reshape(entry["shape"])


def _remove_weights(folder: str) -> None:
    names = storage.list_names(folder) if storage.is_dir(folder) else []
    for name in names:
        if name == _INDEX or name.endswith(".safetensors"):
            storage.remove_tree(storage.join(folder, name))


def _split(entries: list[Entry], max_shard_bytes: int) -> list[list[Entry]]:
    """Returns the tensors of each file: in order, a new one where the last would get too large."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        num_bytes = entry[1].num_bytes
        if shards[-1] and size + num_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += num_bytes
    return shards


def _header(entries: list[Entry]) -> bytes:
    """Returns what stands before the data: a length, and JSON filled up to 8 bytes."""
    facts: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in entries:
        begin, end = end, end + shape.num_bytes
        facts[name] = {
            "dtype": _NAMES[shape.dtype],
            "shape": list(shape.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(facts, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _read_header(file: IO[bytes], path: str) -> tuple[dict[str, Any], int]:
    """Returns name -> facts, and where the data starts."""
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
    text = file.read(length) if 0 < length <= storage.size(path) else b""
    if len(text) != length:
        raise TrainInputError(
            f"model {path}: must be a safetensors file, got one without its header. Export it again."
        )
    facts = json.loads(text)
    facts.pop("__metadata__", None)
    return facts, 8 + length


def _write(file: IO[bytes], name: str, values: np.ndarray, shape: TensorShape) -> None:
    """Writes one tensor, cast and brought into order in parts of its first axis."""
    if values.shape != shape.shape:
        raise ValueError(f"tensor {name}: expected shape {shape.shape}, read {values.shape}")
    rows = values.reshape(1) if values.ndim == 0 else values
    step = max(1, _WRITE_BYTES * len(rows) // max(shape.num_bytes, 1))
    for begin in range(0, len(rows), step):
        part = np.ascontiguousarray(rows[begin : begin + step].astype(shape.dtype, copy=False))
        file.write(part.reshape(-1).view(np.uint8).data)
