"""Is a Hugging Face folder the checkpoint that it was exported from?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neve_train.errors import TrainInputError
from neve_train.export import checkpoint_tensors
from neve_train.hf_folder import iter_tensors

__all__ = ["verify_weights"]


def verify_weights(
    folder: str, checkpoint_path: str, *, on_message: Callable[[str], None] = print
) -> dict[str, Any]:
    """Compares every tensor of a folder, bit for bit, with the checkpoint cast to the folder's type.

    Args:
        folder: Hugging Face folder with config.json and weights.
        checkpoint_path: Output of training, its checkpoints folder, or one step-N.
        on_message: Told which checkpoint is compared.

    Returns:
        num_tensors, parameters, train_step.

    Raises:
        TrainInputError: A tensor differs, is missing, or is in the folder alone; it names the first ones.
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    tensors, step = checkpoint_tensors(checkpoint_path, folder, on_message)
    faults: list[str] = []
    seen: set[str] = set()
    parameters = 0
    for name, values in iter_tensors(folder):
        seen.add(name)
        parameters += values.size
        if name not in tensors:
            faults.append(f"{name} is in the folder alone")
            continue
        expected = tensors[name]().astype(values.dtype)
        if expected.shape != values.shape:
            faults.append(f"{name} has shape {values.shape} instead of {expected.shape}")
        elif num_wrong := _num_different(expected, values):
            faults.append(f"{name} differs in {num_wrong:,} of {values.size:,} values")
    faults += [f"{name} is missing" for name in tensors if name not in seen]
    if faults:
        raise TrainInputError(
            f"model {folder}: must hold the tensors of {checkpoint_path} after train step {step}, got "
            f"{len(faults)} wrong: {'; '.join(faults[:3])}. Export it again."
        )
    return {"num_tensors": len(seen), "parameters": parameters, "train_step": step}


def _num_different(expected: np.ndarray, values: np.ndarray) -> int:
    bits = np.dtype(f"u{values.dtype.itemsize}")
    first, second = (
        np.ascontiguousarray(array).reshape(-1).view(bits) for array in (expected, values)
    )
    return int((first != second).sum())
