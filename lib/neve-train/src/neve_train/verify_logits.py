"""Does another library compute from an exported folder what Levanter computes from the checkpoint?

Weights that are equal bit for bit still give other logits where the two libraries read config.json or the
names of tensors differently, perhaps for rare inputs alone. So the inputs are random: every id of the
vocabulary is as likely as any other, those that no tokenizer emits too, and rows are longer than a sliding
window.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from neve import storage

from neve_train import transformers_logits
from neve_train.errors import TrainInputError
from neve_train.families import family_of

__all__ = ["TOLERANCE", "check_logits", "random_ids", "verify_logits"]

TOLERANCE = 1e-3
"""Largest difference of a logit, in standard deviations of all logits.

Both sides compute in float32, in another order of sums: 2e-5 in a Qwen3 of 28 layers with random weights. A
position, mask, norm or tensor that is read otherwise changes logits by tenths of a standard deviation.
"""


def verify_logits(
    folder: str,
    checkpoint_path: str,
    *,
    python: str = "",
    num_rows: int = 4,
    num_positions: int = 256,
    seed: int = 0,
    on_message: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compares transformers' logits of a folder with Levanter's of the checkpoint cast to its type.

    Both in float32, one after the other, so that memory is needed for one model of that type at a time.

    Args:
        folder: Local Hugging Face folder that was exported from the checkpoint.
        checkpoint_path: Output of training, its checkpoints folder, or one step-N.
        python: Interpreter of an environment with torch and transformers; empty: this one.
        num_rows: Rows of random ids, 1 or more.
        num_positions: Last positions of each row, whose logits are compared, 1 or more.
        seed: Of the ids.
        on_message: Told which checkpoint is compared.

    Returns:
        train_step, num_positions (of all rows), row_length, max_difference and logit_std (both in units
        of logits), transformers and torch (their versions).

    Raises:
        TrainInputError: Transformers can't compute the folder's logits, or they differ.
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    if not storage.is_local(folder):
        raise TrainInputError(
            f"model {folder}: must be a local folder for transformers, got a remote one. Copy it."
        )
    ids, keep = random_ids(folder, num_rows, num_positions, seed)
    theirs, versions = _transformers_logits(folder, ids, keep, python)

    from neve_train.checkpoint_logits import checkpoint_logits  # heavy: jax and Levanter

    ours, step = checkpoint_logits(checkpoint_path, folder, ids, keep, on_message)
    facts = check_logits(folder, ids, ours, theirs)
    length = ids.shape[1]
    return {"train_step": step, "row_length": length, "num_positions": len(ids) * keep} | (
        facts | versions
    )


def random_ids(folder: str, num_rows: int, num_positions: int, seed: int) -> tuple[np.ndarray, int]:
    """Returns random ids for a model, and of how many last positions the logits are compared.

    Args:
        folder: Folder with config.json, and tokenizer.json if its special tokens shall be among the ids.
        num_rows: 1 or more.
        num_positions: How many positions of a row are wanted, 1 or more; fewer in a shorter model.
        seed: The same seed gives the same ids.

    Returns:
        ids: int32[row, position], 0 <= id < vocab_size. A row is half a num_positions longer than the
            sliding window, if there is one and the model is long enough. The special tokens, the first
            and the last id are among the compared positions, as far as these suffice.
        keep: Last positions of each row that are compared.
    """
    family = family_of(folder)
    config = storage.read_json(storage.join(folder, "config.json"))
    vocab_size, longest = config["vocab_size"], config["max_position_embeddings"]
    window = (family.has_windows and config.get("sliding_window")) or 0
    length = min(max(num_positions, window + num_positions // 2), longest)
    keep = min(num_positions, length)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab_size, (num_rows, length), dtype=np.int32)
    rare = rng.permutation(sorted({0, vocab_size - 1, *_special_ids(folder)}))
    rare = rare[rare < vocab_size][: num_rows * keep]
    places = rng.choice(num_rows * keep, len(rare), replace=False)
    ids[places // keep, length - keep + places % keep] = rare
    return ids, keep


def _special_ids(folder: str) -> list[int]:
    path = storage.join(folder, "tokenizer.json")
    if not storage.exists(path):
        return []
    return [token["id"] for token in storage.read_json(path).get("added_tokens") or ()]


def _transformers_logits(
    folder: str, ids: np.ndarray, keep: int, python: str
) -> tuple[np.ndarray, dict[str, str]]:
    """Returns float32[row, keep, vocab] and the versions, from a process of its own."""
    python = python or sys.executable
    program = str(Path(transformers_logits.__file__).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        ids_path, logits_path = (str(Path(scratch) / name) for name in ("ids.npy", "logits.npy"))
        np.save(ids_path, ids)
        where = storage.local_path(folder)
        # -I: neither our PYTHONPATH nor the modules beside the program are that environment's.
        words = [python, "-I", program, where, ids_path, str(keep), logits_path]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise _not_computed(folder, python, str(error)) from error
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            told = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
            raise _not_computed(folder, python, (told or lines)[-1])
        return np.load(logits_path), json.loads(done.stdout.strip().splitlines()[-1])


def _not_computed(folder: str, python: str, reason: str) -> TrainInputError:
    return TrainInputError(
        f"model {folder}: transformers of {python} must compute its logits, got {reason[:300]}. Pass the "
        "interpreter of an environment with torch and a transformers that knows this model_type."
    )


def check_logits(
    folder: str, ids: np.ndarray, ours: np.ndarray, theirs: np.ndarray
) -> dict[str, float]:
    """Returns max_difference and logit_std of two implementations' logits.

    Args:
        folder: Named in the error.
        ids: int32[row, position], the inputs.
        ours: float[row, kept position, vocab], Levanter's; the last positions of each row.
        theirs: The other library's.

    Raises:
        TrainInputError: The shapes differ, or a logit by more than TOLERANCE standard deviations.
    """
    if ours.shape != theirs.shape:
        raise TrainInputError(
            f"model {folder}: logits of both libraries must have the same shape, got {ours.shape} of "
            f"Levanter and {theirs.shape}. Compare vocab_size in config.json with the tensors."
        )
    spread = float(ours.std())
    differences = np.abs(ours - theirs).max(axis=-1)
    differences = np.where(np.isnan(differences), np.inf, differences)
    row, place = np.unravel_index(int(differences.argmax()), differences.shape)
    largest = float(differences[row, place])
    if not largest <= TOLERANCE * spread:
        position = int(place) + ids.shape[1] - ours.shape[1]
        num_wrong = int((differences > TOLERANCE * spread).sum())
        raise TrainInputError(
            f"model {folder}: logits of the other library must be within {TOLERANCE * spread:.2g} of "
            f"the checkpoint's, got {largest:.2g} off after id {ids[row, position]} at position "
            f"{position}, and {num_wrong:,} of {differences.size:,} positions wrong. Don't serve it "
            "with that library."
        )
    return {"max_difference": largest, "logit_std": spread}
