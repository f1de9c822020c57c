"""Trains a model with Levanter's Trainer, from Hugging Face weights or where an attempt stopped."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jax
import jax.random as jrandom
from haliax import Axis
from haliax.partitioning import named_jit
from levanter.eval import TaggedEvaluator
from levanter.optim.config import AdamConfig
from levanter.tokenizers import load_tokenizer
from levanter.trainer import Trainer
from levanter.utils.tree_utils import inference_mode
from neve import storage

from neve_train import checkpoints, devices
from neve_train.config import ExecutionConfig, OptimizerConfig, TrainSftConfig
from neve_train.data import read_data, read_plan
from neve_train.errors import TrainInputError
from neve_train.export import load_hf_model
from neve_train.families import family_of, read_model_config
from neve_train.mesh import check_mesh
from neve_train.metrics import MetricsFile, draw_curve
from neve_train.tracking import start_tracking

__all__ = ["Callbacks", "train"]


def _nothing(*_args: Any, **_values: Any) -> None:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Where training tells what it does; each defaults to nothing."""

    on_progress: Callable[..., None] = _nothing
    """on_progress(done, total, loss=...) after each train step."""
    on_metrics: Callable[..., None] = _nothing
    """on_metrics(train step, **values)."""
    on_message: Callable[[str], None] = _nothing
    """on_message(text) for what the user should see."""


def train(
    config: TrainSftConfig,
    output_path: str,
    callbacks: Callbacks = Callbacks(),
) -> dict[str, Any]:
    """Trains to the plan's last train step; killed at any time and called again, it goes on.

    Leaves checkpoints/step-N, loss.jsonl and loss.png below output_path.

    Returns:
        final_loss, heldout_loss_first, heldout_loss, num_train_steps, positions (padding
        included), positions_per_second, seconds, resumed_from, checkpoint (relative to output_path).

    Raises:
        TrainInputError: Config, model, caches and mesh don't fit together.
        CheckpointError: Saved before, and nothing saved can be read.
    """
    return _Run(config, output_path, callbacks).run()


class _Run:
    def __init__(self, config: TrainSftConfig, output_path: str, callbacks: Callbacks) -> None:
        self.config = config
        self.execution: ExecutionConfig = config.execution
        self.output_path = output_path
        self.callbacks = callbacks
        self.plan = read_plan(config)
        self.num_train_steps: int = self.plan["num_train_steps"]
        self.model_config = read_model_config(
            str(config.model), config.capacity_factor, self.plan["packing"] == "packed"
        )
        if config.seq_len > self.model_config.max_seq_len:
            raise TrainInputError(
                f"training: seq_len must be at most the model's {self.model_config.max_seq_len}, "
                f"got {config.seq_len}. Lower it."
            )
        devices.initialize(self.execution.compilation_cache_dir)
        self.axes = check_mesh(
            jax.device_count(),
            dict(self.execution.mesh) or {"data": -1},
            config.batch_size,
            config.seq_len,
            getattr(self.model_config, "num_experts", None),
            family_of(str(config.model)).mesh_axes,
        )
        self.checkpoints_path = storage.join(output_path, "checkpoints")
        self.metrics = MetricsFile(storage.join(output_path, "loss.jsonl"))
        self.torn: list[Any] = []

    def run(self) -> dict[str, Any]:
        run_id = self.output_path.rstrip("/").rpartition("/")[2]
        config, execution = self.config, self.execution
        rows = config.batch_size // (self.axes["data"] * self.axes["expert"])
        trainer_config = devices.base_trainer_config(
            self.axes,
            explicit_axes=self.model_config.requires_explicit_mesh_axes,
            id=run_id,
            seed=config.seed,
            mp=devices.policy(config.precision),
            train_batch_size=config.batch_size,
            per_device_parallelism=execution.per_device_batch_size or rows,
            per_device_eval_parallelism=execution.per_device_batch_size or rows,
            num_train_steps=self.num_train_steps,
        )
        self.optimizer = adam(config.optimizer)
        self.schedule = self.optimizer.lr_scheduler(self.num_train_steps)
        with storage.scratch_dir() as scratch:
            tracking = start_tracking(
                run_id,
                execution.wandb_project,
                execution.wandb_tags,
                dataclasses.asdict(config),
                str(scratch),
                self.callbacks.on_message,
            )
            exit_code = 1
            try:
                self.tracking = tracking
                optimizer = self.optimizer.build(self.num_train_steps)
                loss: Any = self._loss  # a method where Levanter declares a protocol
                with Trainer(trainer_config, optimizer, loss, add_default_hooks=False) as trainer:
                    results = self._train(trainer)
                exit_code = 0
            finally:
                tracking.finish(exit_code=exit_code)
        return results

    def _loss(self, model: Any, example: Any, *, key: Any = None) -> Any:
        return model.compute_next_token_loss(
            example, key=key, logsumexp_weight=self.config.z_loss or None
        )

    def _say_length(self) -> None:
        config, plan = self.config, self.plan
        self.callbacks.on_message(
            f"{self.num_train_steps:,} train steps of {config.batch_size:,} rows x "
            f"{config.seq_len:,} tokens, {plan['num_train_epochs']:.2f} epochs, rows "
            f"{plan['fill']:.1%} full"
        )

    def _train(self, trainer: Trainer) -> dict[str, Any]:
        _, _, model_key, training_key = jrandom.split(jrandom.PRNGKey(self.config.seed), 4)
        Pos = self.model_config.max_Pos.resize(self.config.seq_len)
        data = read_data(self.config, self.plan, Pos)
        evaluate = self._evaluator(trainer, data.validation)
        state = self._state(trainer, model_key, training_key)
        first = int(state.step)
        self._say_length()
        self.metrics.forget_after(first)
        checkpointer = checkpoints.NotingCheckpointer(
            self.checkpoints_path,
            timedelta(seconds=self.execution.checkpoint_every_seconds),
            [],
            before_save=self.metrics.write,
        )
        if first == 0:
            self._evaluate(evaluate, state, 0)
        started = time.monotonic()
        loader = trainer.data_loader(data.train).iter_from_step(first)
        for info in trainer.training_steps(state, loader):
            state = info.state
            self._after_step(info, evaluate, checkpointer)
        seconds = time.monotonic() - started
        checkpointer.wait_until_finished()
        self.metrics.write()
        title = f"{trainer.run_id}, {self.num_train_steps} train steps"
        draw_curve(self.metrics, storage.join(self.output_path, "loss.png"), title)
        return self._results(first, seconds)

    def _state(self, trainer: Trainer, model_key: Any, training_key: Any) -> Any:
        """Returns the newest saved TrainerState, or a fresh one with the base model's weights."""
        vocab_size = self.model_config.vocab_size
        num_tokens = len(load_tokenizer(str(self.config.tokenizer)))
        if num_tokens > vocab_size:
            raise TrainInputError(
                f"training: the tokenizer must have at most the model's {vocab_size} tokens, got "
                f"{num_tokens}. Use the tokenizer that belongs to the model."
            )
        Vocab = Axis("vocab", vocab_size)

        def fresh() -> Any:
            return self.model_config.build(Vocab, key=model_key)

        load = functools.partial(checkpoints.restored, trainer, training_key, fresh)
        message = self.callbacks.on_message
        state, candidate, self.torn = checkpoints.restore_newest(
            self.checkpoints_path, load, message
        )
        if state is not None and candidate is not None:
            message(f"resuming after train step {int(state.step)} from {candidate.path}")
            return state
        trainer.config = dataclasses.replace(
            trainer.config, load_checkpoint=False, load_checkpoint_path=None
        )
        model = load_hf_model(
            self.model_config,
            str(self.config.model),
            str(self.config.tokenizer),
            trainer.mp.param_dtype,
        )
        model = named_jit(trainer.mp.cast_to_param, trainer.parameter_axis_mapping)(model)
        return trainer.initial_state(training_key, model=model)

    def _evaluator(self, trainer: Trainer, sets: Any) -> TaggedEvaluator | None:
        if not sets:
            self.callbacks.on_message("no held-out rows: only the training loss is measured.")
            return None
        EvalBatch = trainer.config.EvalBatch
        mp = trainer.mp

        def losses(model: Any, batch: Any) -> tuple[Any, Any, Any]:
            # Levanter's own also rolls the tokens, which fails where context splits each row.
            model = mp.cast_to_compute(inference_mode(model, True))
            loss = model.compute_next_token_loss(batch, reduction=None, reduction_axis=())
            return loss.array, batch.loss_weight.array, batch.tokens.array

        return TaggedEvaluator(
            EvalBatch,
            sets,
            losses,
            device_mesh=trainer.device_mesh,
            axis_mapping=trainer.compute_axis_mapping,
            max_examples_per_dataset=self.execution.max_eval_rows,
        )

    def _after_step(self, info: Any, evaluate: Any, checkpointer: Any) -> None:
        done = info.next_step
        is_last = done == self.num_train_steps
        positions = self.config.batch_size * self.config.seq_len
        values = {
            "loss": float(info.loss),
            "learning_rate": float(self.schedule(done - 1)),
            "seconds": info.step_duration,
            "positions_per_second": positions / info.step_duration,
        }
        self.metrics.add(done, **values)
        if done % self.execution.log_every_train_steps == 0 or is_last:
            self.callbacks.on_metrics(done, **values)
            self.tracking.log(done, values)
        self.callbacks.on_progress(done, self.num_train_steps, loss=round(values["loss"], 4))
        if done % self.execution.eval_every_train_steps == 0 or is_last:
            self._evaluate(evaluate, info.state, done)
        self.torn = checkpoints.without_step(self.torn, done)
        every = self.execution.checkpoint_every_train_steps
        checkpointer.after_step(
            info.state, done, keep=is_last or (every is not None and done % every == 0)
        )

    def _evaluate(self, evaluate: TaggedEvaluator | None, state: Any, done: int) -> None:
        if evaluate is None:
            return
        loss = float(evaluate.evaluate(state.model).micro_avg_loss)
        self.metrics.add(done, heldout_loss=loss)
        self.callbacks.on_metrics(done, heldout_loss=loss)
        self.tracking.log(done, {"heldout_loss": loss})
        self.callbacks.on_message(f"train step {done}: held-out loss {loss:.4f}")

    def _results(self, first: int, seconds: float) -> dict[str, Any]:
        losses, heldout = self.metrics.series("loss"), self.metrics.series("heldout_loss")
        num_done = self.num_train_steps - first
        positions = self.config.batch_size * self.config.seq_len
        return {
            "final_loss": losses[-1][1] if losses else None,
            "heldout_loss_first": heldout[0][1] if heldout else None,
            "heldout_loss": heldout[-1][1] if heldout else None,
            "num_train_steps": self.num_train_steps,
            "positions": self.num_train_steps * positions,
            "positions_per_second": round(num_done * positions / seconds, 1) if num_done else None,
            "seconds": round(seconds, 2),
            "resumed_from": first or None,
            "checkpoint": f"checkpoints/step-{self.num_train_steps - 1}",
        }


def adam(config: OptimizerConfig) -> AdamConfig:
    """Returns Levanter's optimizer; its default mask keeps biases, such as the router's, from decay."""
    return AdamConfig(
        learning_rate=config.learning_rate,
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm or None,
        warmup=config.warmup if config.warmup < 1 else int(config.warmup),
        min_lr_ratio=config.min_lr_ratio,
        lr_schedule=config.schedule,
    )
