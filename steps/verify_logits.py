"""Step: transformers computes from an exported folder what Levanter computes from the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neve_train.errors import TrainInputError

__all__ = ["VerifyLogitsConfig", "verify_logits"]


@dataclass(frozen=True, kw_only=True)
class VerifyLogitsConfig:
    """A folder, what it was exported from, and who computes it a second time."""

    folder: Any
    """Output of export_hf: a path or a step. Local, as transformers reads it."""
    checkpoint: Any
    """Output of train_sft, or one step-N folder: a path or a step."""
    transformers_python: str = ""
    """Python interpreter of an environment with torch and transformers; empty: this environment's."""
    num_rows: int = 4
    """Rows of random token ids, 1 or more."""
    num_positions: int = 256
    """Last positions of each row, whose logits are compared, 1 or more."""
    seed: int = 0
    """Of the token ids."""

    def __post_init__(self) -> None:
        """Checks the counts."""
        for name in ("num_rows", "num_positions"):
            if getattr(self, name) < 1:
                raise TrainInputError(
                    f"verify_logits: {name} must be 1 or more, got {getattr(self, name)}. Raise it."
                )


def verify_logits(config: VerifyLogitsConfig, output_path: str) -> dict[str, Any]:
    """The output holds verified.json with what was compared, with which versions and how exactly.

    Random ids of the whole vocabulary, special tokens among them; both libraries in float32 with the
    folder's weights, one after the other. It needs memory for the model in float32.

    Returns:
        train_step, row_length, num_positions, max_difference, logit_std, transformers, torch.

    Raises:
        TrainInputError: The logits differ, or transformers can't compute them.
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    from neve import progress, storage
    from neve_train import verify_logits as comparison  # heavy: jax and Levanter

    results = comparison.verify_logits(
        str(config.folder),
        str(config.checkpoint),
        python=config.transformers_python,
        num_rows=config.num_rows,
        num_positions=config.num_positions,
        seed=config.seed,
        on_message=progress.message,
    )
    storage.write_json(storage.join(output_path, "verified.json"), results)
    return results
