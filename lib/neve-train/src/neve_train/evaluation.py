"""Loss on the held-out rows."""

from __future__ import annotations

from typing import Any

from levanter.eval import TaggedEvaluator
from levanter.trainer import TrainerConfig
from levanter.utils.tree_utils import inference_mode

from neve_train.losses import weighted_losses

__all__ = ["HeldOutLoss"]


class HeldOutLoss:
    """Mean loss over the trained tokens of held-out rows, compiled once."""

    def __init__(self, config: TrainerConfig, sets: Any, max_rows: int | None) -> None:
        """Reads nothing yet.

        Args:
            config: Precision, batch and mesh.
            sets: (rows, names) of each data set, one or more.
            max_rows: Rows of each that are used; None: all.
        """
        self._evaluator = TaggedEvaluator(
            config.EvalBatch,
            sets,
            lambda model, batch: _losses(config, model, batch),
            device_mesh=config.device_mesh,
            axis_mapping=config.compute_axis_mapping,
            max_examples_per_dataset=max_rows,
        )

    def __call__(self, model: Any) -> float:
        """Returns the loss, nats per trained token."""
        return float(self._evaluator.evaluate(model).micro_avg_loss)


def _losses(config: TrainerConfig, model: Any, batch: Any) -> tuple[Any, Any, Any]:
    # Levanter's own also rolls the tokens, which fails where context splits each row.
    model = config.mp.cast_to_compute(inference_mode(model, True))
    return weighted_losses(model, batch).array, batch.loss_weight.array, batch.tokens.array
