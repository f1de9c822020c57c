"""The numbers of train steps: what stops a training, and what its sums say."""

from pathlib import Path
from typing import Any

import pytest
from neve_train.config import ExecutionConfig, OptimizerConfig, TrainSftConfig
from neve_train.errors import DivergedError, TrainInputError
from neve_train.metrics import MetricsFile
from neve_train.reporting import check_held_out, check_step, totals


def config(**changes: Any) -> TrainSftConfig:
    """Returns a config of 4 rows of 8 positions."""
    values: dict[str, Any] = {
        "model": "m",
        "tokenizer": "t",
        "plan": "p",
        "caches": ("c",),
        "seq_len": 8,
        "batch_size": 4,
    }
    return TrainSftConfig(**(values | changes))


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_or_gradient_that_is_no_number_stops_training(name: str, value: float) -> None:
    """Either one of them is enough."""
    row = {"loss": 1.0, "gradient_norm": 1.0} | {name: value}

    with pytest.raises(DivergedError, match=f"train step 7: .* got .*{value}"):
        check_step(7, row, config())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_held_out_loss_that_is_no_number_stops_training(value: float) -> None:
    """After a train step it is the learning rate, before any the model."""
    with pytest.raises(
        DivergedError, match=f"after train step 7: .* got {value}. Lower the learning"
    ):
        check_held_out(7, value)
    with pytest.raises(DivergedError, match="Look at the model's weights"):
        check_held_out(0, value)
    check_held_out(7, 2.5)


def test_more_dropped_assignments_than_allowed_stop_training() -> None:
    """0.2 % of the assignments is above the default of 0.1 %, and can be allowed."""
    row = {"loss": 1.0, "gradient_norm": 1.0, "dropped_fraction": 0.002}

    with pytest.raises(TrainInputError, match=r"at most 0.10% .* got 0.20%. Raise capacity_factor"):
        check_step(3, row, config())
    check_step(3, row, config(max_dropped_fraction=0.002))


def test_totals_are_those_of_all_attempts(tmp_path: Path) -> None:
    """Counts add up over the rows that are left after a restart; a step without loss is counted."""
    metrics = MetricsFile(str(tmp_path / "loss.jsonl"))
    for step, trained in enumerate([9, 0, 11], 1):
        metrics.add(
            step,
            loss=1.0,
            trained_tokens=trained,
            real_tokens=20,
            assignments=100,
            dropped_assignments=step,
        )

    found = totals(metrics, config())

    # 3 train steps of 32 positions, of which 20 each are real.
    assert found == {
        "trained_tokens": 20,
        "real_tokens": 60,
        "padding_fraction": 0.375,
        "num_train_steps_without_trained_tokens": 1,
        "dropped_fraction": 6 / 300,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trackers": ("wandb", "mlflow")}, "trackers must be among wandb, .* got mlflow"),
        ({"keep_last_checkpoints": 0}, "keep_last_checkpoints must be 1 or more, got 0"),
        ({"keep_every_train_steps": 0}, "keep_every_train_steps must be 1 or more, got 0"),
    ],
)
def test_execution_refuses_what_it_cannot_do(change: dict[str, Any], message: str) -> None:
    """Each error says field, rule and value."""
    with pytest.raises(TrainInputError, match=message):
        ExecutionConfig(**change)


def test_warmup_is_a_share_or_whole_train_steps() -> None:
    """2.5 train steps can't be done."""
    with pytest.raises(
        TrainInputError, match=r"warmup must be below 1 or whole train steps, got 2.5"
    ):
        OptimizerConfig(warmup=2.5)
