"""Weights of a Hugging Face folder: what an interrupted or earlier export leaves."""

from pathlib import Path

import numpy as np
import pytest
from neve_train.hf_folder import TensorShape, iter_tensors, write_weights

FLOAT = np.dtype(np.float32)


def write(folder: Path, *values: float, max_shard_bytes: int = 1 << 20) -> None:
    """Writes a tensor of 4 numbers for each value."""
    arrays = {f"t{place}": np.full(4, value, np.float32) for place, value in enumerate(values)}
    write_weights(
        {name: lambda array=array: array for name, array in arrays.items()},
        {name: TensorShape((4,), FLOAT) for name in arrays},
        str(folder),
        max_shard_bytes=max_shard_bytes,
    )


def read(folder: Path) -> dict[str, float]:
    return {name: float(values[0]) for name, values in iter_tensors(str(folder))}


def test_an_earlier_export_is_never_read_for_the_new_one(tmp_path: Path) -> None:
    """Three files with an index, then one file, then three again: readers see the last alone."""
    write(tmp_path, 1, 2, 3, max_shard_bytes=16)
    assert read(tmp_path) == {"t0": 1, "t1": 2, "t2": 3}

    write(tmp_path, 4, 5)
    assert read(tmp_path) == {"t0": 4, "t1": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]

    write(tmp_path, 6, 7, 8, max_shard_bytes=16)
    assert read(tmp_path) == {"t0": 6, "t1": 7, "t2": 8}
    assert not (tmp_path / "model.safetensors").exists()


def test_an_export_that_fails_leaves_no_index_and_no_half_file(tmp_path: Path) -> None:
    """Of two files the second can't be written: nothing there passes for a model."""

    def broken() -> np.ndarray:
        raise OSError("no space left on device")

    shape = TensorShape((4,), FLOAT)
    with pytest.raises(OSError, match="no space left"):
        write_weights(
            {"a": lambda: np.zeros(4, np.float32), "b": broken},
            {"a": shape, "b": shape},
            str(tmp_path),
            max_shard_bytes=16,
        )

    assert [path.name for path in tmp_path.iterdir()] == ["model-00001-of-00002.safetensors"]
