"""Step: every tensor of an exported folder is the checkpoint's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["VerifyHfConfig", "verify_hf"]


@dataclass(frozen=True, kw_only=True)
class VerifyHfConfig:
    """A folder, and what it was exported from."""

    folder: Any
    """Output of export_hf: a path or a step."""
    checkpoint: Any
    """Output of train_sft, or one step-N folder: a path or a step."""


def verify_hf(config: VerifyHfConfig, output_path: str) -> dict[str, Any]:
    """The output holds verified.json with what was compared, bit for bit.

    Returns:
        num_tensors, parameters, train_step.

    Raises:
        TrainInputError: A tensor differs, is missing, or is in the folder alone.
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    from neve import progress, storage
    from neve_train.verify import verify_weights  # heavy: jax and Levanter

    results = verify_weights(
        str(config.folder), str(config.checkpoint), on_message=progress.message
    )
    storage.write_json(storage.join(output_path, "verified.json"), results)
    return results
