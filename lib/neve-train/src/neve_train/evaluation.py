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
            _in_batches(sets, max_rows, config.EvalBatch.size),
            lambda model, batch: _losses(config, model, batch),
            device_mesh=config.device_mesh,
            axis_mapping=config.compute_axis_mapping,
        )

    def __call__(self, model: Any) -> float:
        """Returns the loss, nats per trained token."""
        return float(self._evaluator.evaluate(model).micro_avg_loss)


def _in_batches(sets: Any, max_rows: int | None, batch_size: int) -> Any:
    """Returns the sets cut to max_rows, the last one filled up to whole batches.

    The rows of zeros that Levanter would add aren't marked as padding: they would take the capacity
    of experts from the last batch.
    """
    cut = [(rows.evened(max_rows), names) for rows, names in sets]
    rows, names = cut.pop()
    num_rows = rows.plan.num_rows + sum(other.plan.num_rows for other, _ in cut)
    return [*cut, (rows.evened(None, -num_rows % batch_size), names)]


def _losses(config: TrainerConfig, model: Any, batch: Any) -> tuple[Any, Any, Any]:
    # Levanter's own also rolls the tokens, which fails where context splits each row.
    model = config.mp.cast_to_compute(inference_mode(model, True))
    return weighted_losses(model, batch).array, batch.loss_weight.array, batch.tokens.array
