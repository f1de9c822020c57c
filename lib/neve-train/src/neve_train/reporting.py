"""The numbers of a training: of each train step, and of the whole at its end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax

from neve_train.config import TrainSftConfig
from neve_train.errors import DivergedError, TrainInputError
from neve_train.metrics import MetricsFile
from neve_train.throughput import PhaseClock, peak_flops_of, step_flops

if TYPE_CHECKING:
    from neve_train.train_step import StepResult

__all__ = ["StepNumbers", "check_held_out", "check_step", "totals"]


class StepNumbers:
    """Turns what a train step tells and the time it took into one row of metrics."""

    def __init__(self, config: TrainSftConfig, model_config: Any, plan: Any) -> None:
        """Args: plan is the RowPlan of the training."""
        self._positions = config.batch_size * config.seq_len
        self._flops = step_flops(model_config, plan, config.batch_size)
        peak = peak_flops_of(jax.devices()[0].device_kind)
        self._peak = None if peak is None else peak * jax.device_count()

    def row(
        self, completed: int, result: StepResult, learning_rate: float, clock: PhaseClock
    ) -> dict[str, float]:
        """Returns the values of a train step; speeds are per second of waiting for rows and step.

        Args:
            completed: Number of train steps done, this one included.
            result: What the step told.
            learning_rate: Learning rate that it used.
            clock: Has timed its phases data and step.
        """
        trained, real = int(result.trained_tokens), int(result.real_tokens)
        times = clock.lap("data", "step")
        seconds = sum(times.values())
        row = {
            "loss": float(result.loss),
            "learning_rate": learning_rate,
            "gradient_norm": float(result.gradient_norm),
            "trained_tokens": trained,
            "real_tokens": real,
            "padding_fraction": round(1 - real / self._positions, 6),
            **times,
            "positions_per_second": self._positions / seconds,
            "real_tokens_per_second": real / seconds,
            "trained_tokens_per_second": trained / seconds,
        }
        if result.facts:
            row |= {name: int(value) for name, value in result.facts.items()}
            if "dropped_assignments" in row:
                row["dropped_fraction"] = _share(row["dropped_assignments"], row["assignments"])
        if self._flops is not None:
            row["model_flops"] = float(self._flops[completed - 1])
            if self._peak is not None:
                row["mfu"] = row["model_flops"] / seconds / self._peak
        return row

    def speeds(self, metrics: MetricsFile, first: int, seconds: float) -> dict[str, Any]:
        """Returns the speeds of one attempt, None where it did no train step.

        Args:
            metrics: Rows of the run.
            first: Train steps done before this attempt.
            seconds: Time of its train steps and of waiting for their rows.
        """
        num_steps = sum(step > first for step, _ in metrics.series("loss"))
        counts = {"positions": num_steps * self._positions}
        counts |= {
            f"{kind}_tokens": int(metrics.total(f"{kind}_tokens", first))
            for kind in ("real", "trained")
        }
        found: dict[str, Any] = {
            f"{name}_per_second": round(count / seconds, 1) if num_steps else None
            for name, count in counts.items()
        }
        if self._flops is not None and self._peak is not None and num_steps:
            found["mfu"] = metrics.total("model_flops", first) / seconds / self._peak
        return found


def check_step(completed: int, row: dict[str, float], config: TrainSftConfig) -> None:
    """Refuses a train step after which it is no use to go on.

    Raises:
        DivergedError: Loss or gradient is no finite number.
        TrainInputError: More assignments to experts were dropped than allowed.
    """
    if not (math.isfinite(row["loss"]) and math.isfinite(row["gradient_norm"])):
        raise DivergedError(
            f"train step {completed}: loss and gradient norm must be finite, got {row['loss']} and "
            f"{row['gradient_norm']}. Look at its rows, or lower the learning rate."
        )
    dropped = row.get("dropped_fraction", 0.0)
    if dropped > config.max_dropped_fraction:
        raise TrainInputError(
            f"train step {completed}: at most {config.max_dropped_fraction:.2%} of the assignments to "
            f"experts may be dropped (max_dropped_fraction), got {dropped:.2%}. Raise capacity_factor "
            f"from {config.capacity_factor:g} to {2 * config.capacity_factor:g}, or allow more."
        )


def check_held_out(completed: int, loss: float) -> None:
    """Refuses weights that a train step ruined, which its own loss, taken before, can't show.

    Raises:
        DivergedError: The loss is no finite number.
    """
    if not math.isfinite(loss):
        raise DivergedError(
            f"held-out loss after train step {completed}: must be finite, got {loss}. "
            + ("Lower the learning rate." if completed else "Look at the model's weights.")
        )


def totals(metrics: MetricsFile, config: TrainSftConfig) -> dict[str, Any]:
    """Returns the sums over all train steps of all attempts, and what they say."""
    num_steps = len(metrics.series("loss"))
    positions = num_steps * config.batch_size * config.seq_len
    trained, real = (int(metrics.total(f"{kind}_tokens")) for kind in ("trained", "real"))
    found: dict[str, Any] = {
        "trained_tokens": trained,
        "real_tokens": real,
        "padding_fraction": round(1 - real / positions, 6) if positions else None,
        "num_train_steps_without_trained_tokens": sum(
            count == 0 for _, count in metrics.series("trained_tokens")
        ),
    }
    if metrics.series("assignments"):
        found["dropped_fraction"] = _share(
            metrics.total("dropped_assignments"), metrics.total("assignments")
        )
    return found


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
