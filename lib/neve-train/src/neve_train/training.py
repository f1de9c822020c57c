"""Trains a model that Levanter knows, from Hugging Face weights or where an attempt stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
from levanter.data.loader import DataLoader
from neve import storage

from neve_train import checkpoints, devices
from neve_train.config import ExecutionConfig, TrainSftConfig
from neve_train.data import read_data, read_plan, save_rows
from neve_train.errors import DivergedError, PreemptedError, TrainInputError
from neve_train.evaluation import HeldOutLoss
from neve_train.families import model_split, read_model_config
from neve_train.kept_program import KeptProgram
from neve_train.losses import loss_sums
from neve_train.mesh import check_mesh
from neve_train.metrics import MetricsFile, draw_curve
from neve_train.optimizer import adam
from neve_train.preemption import StopRequest, noting_signals
from neve_train.program_key import program_key
from neve_train.reporting import StepNumbers, check_held_out, check_step, totals
from neve_train.resume import TRAINING_FILE, check_resumed, describe_training
from neve_train.step_exports import StepExports
from neve_train.throughput import PhaseClock
from neve_train.tracking import Trackings, start_trackers
from neve_train.train_state import starting_state
from neve_train.train_step import build_train_step, compile_train_step, on_states

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
    """Trains to the plan's last train step; stopped or killed at any time and called again, it goes on.

    Leaves checkpoints/step-N, loss.jsonl and loss.png below output_path. SIGTERM and SIGUSR1 let it
    finish and save the train step. In a run of several processes each calls it, after
    jax.distributed was initialized; the first one writes the files.

    Returns:
        final_loss, heldout_loss_first, heldout_loss, num_train_steps, positions (padding included),
        trained_tokens, real_tokens, padding_fraction, dropped_fraction where experts may drop,
        num_train_steps_without_trained_tokens, positions_per_second and the like for each kind of
        token and mfu where it is known (both of this attempt), seconds and <phase>_seconds of this
        attempt, compilation_cache_hits and _misses, resumed_from, exports made on the way and checkpoint
        (relative to output_path), failed_exports.

    Raises:
        TrainInputError: Config, model, caches and mesh don't fit together, or more assignments to
            experts were dropped than allowed.
        CheckpointError: Saved before, and nothing saved can be read; or a checkpoint could not be written.
        DivergedError: Loss, gradient or held-out loss became no finite number.
        PreemptedError: Stopped by a signal; what was done is saved.
    """
    request = StopRequest()
    with noting_signals(request):
        return _Run(config, output_path, callbacks, request).run()


class _Run:
    def __init__(
        self,
        config: TrainSftConfig,
        output_path: str,
        callbacks: Callbacks,
        request: StopRequest,
    ) -> None:
        self.config = config
        self.execution: ExecutionConfig = config.execution
        self.output_path = output_path
        self.callbacks = callbacks
        self.request = request
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
        self.cache_dir = devices.initialize(self.execution.compilation_cache_dir)
        self.is_writer = jax.process_index() == 0
        axes = check_mesh(
            jax.device_count(),
            dict(self.execution.mesh) or {"data": -1},
            config.batch_size,
            config.seq_len,
            model_split(str(config.model)),
        )
        rows = config.batch_size // (axes["data"] * axes["expert"])
        self.num_microbatches = _num_microbatches(rows, self.execution.per_device_batch_size)
        self.run_id = output_path.rstrip("/").rpartition("/")[2]
        self.trainer_config = devices.base_trainer_config(
            axes,
            explicit_axes=self.model_config.requires_explicit_mesh_axes,
            id=self.run_id,
            seed=config.seed,
            mp=devices.policy(config.precision),
            train_batch_size=config.batch_size,
            per_device_parallelism=rows,
            per_device_eval_parallelism=self.execution.per_device_batch_size or rows,
            num_train_steps=self.num_train_steps,
        )
        adam_config = adam(config.optimizer, self.num_train_steps)
        self.optimizer = adam_config.build(self.num_train_steps)
        self.schedule = adam_config.lr_scheduler(self.num_train_steps)
        self.checkpoints_path = storage.join(output_path, "checkpoints")
        self.metrics = MetricsFile(storage.join(output_path, "loss.jsonl"), self.is_writer)
        self.exports = StepExports(
            config, output_path, callbacks.on_message, is_writer=self.is_writer
        )
        self.kept = self._kept_program()
        self.clock = PhaseClock()
        self.torn: list[Any] = []

    def run(self) -> dict[str, Any]:
        with storage.scratch_dir() as scratch:
            self.trackings = Trackings()
            if self.is_writer:
                self.trackings = start_trackers(
                    self.run_id,
                    self.execution,
                    dataclasses.asdict(self.config),
                    self.output_path,
                    str(scratch),
                    self.callbacks.on_message,
                )
            exit_code = 1
            try:
                with devices.on_mesh(self.trainer_config):
                    results = self._train()
                exit_code = 0
            finally:
                self.kept.finish()
                self.trackings.finish(exit_code=exit_code)
        return results

    def _train(self) -> dict[str, Any]:
        started = time.monotonic()
        Pos = self.model_config.max_Pos.resize(self.config.seq_len)
        self.data = read_data(self.config, self.plan, Pos)
        self.numbers = StepNumbers(self.config, self.model_config, self.data.train.plan)
        self.evaluate = self._held_out_loss()
        state = self._state()
        first = int(state.step)
        self._say_length()
        self.metrics.forget_after(first)
        if lost := self.metrics.lacking(first):
            self.callbacks.on_message(
                f"loss.jsonl lacks {len(lost):,} of the {first:,} train steps that are done, such as "
                f"{lost[0]}: totals are without them."
            )
        checkpointer = checkpoints.NotingCheckpointer(
            self.checkpoints_path, self.execution, before_save=self._before_save
        )
        if first == 0:
            self._evaluate(state, 0)
        else:
            self._export(first)
        if first < self.num_train_steps:
            try:
                self._steps(state, first, checkpointer)
            except BaseException:
                self.exports.cancel()
                raise
        with self.clock.phase("checkpoint"):
            checkpointer.wait_until_finished()
            self.exports.finish()
        self.metrics.write()
        if self.is_writer:
            title = f"{self.run_id}, {self.num_train_steps} train steps"
            draw_curve(self.metrics, storage.join(self.output_path, "loss.png"), title)
        return self._results(first, time.monotonic() - started)

    def _steps(self, state: Any, first: int, checkpointer: Any) -> None:
        config = self.trainer_config
        loader = DataLoader(
            self.data.train,
            self.config.batch_size,
            batch_axis_name=config.batch_axis_name,
            mesh=config.device_mesh,
            axis_resources=config.compute_axis_mapping,
            max_buffered_batches=16,
            fetch_batch_size=4,
        ).iter_from_step(first)
        try:
            with self.clock.phase("data"):
                batch = next(loader)
            step = self._compiled(state, batch)
            if self.request.is_set():
                self._stop(first, checkpointer)
            for completed in range(first + 1, self.num_train_steps + 1):
                with self.clock.phase("step"):
                    state, result = step(state, batch)
                    result = jax.block_until_ready(result)
                self._after_step(state, completed, result, checkpointer)
                if completed < self.num_train_steps:
                    with self.clock.phase("data"):
                        batch = next(loader)
        except BaseException as error:
            try:
                self.metrics.write()  # of what went wrong, too
            except OSError as unwritten:
                error.add_note(f"the last rows of metrics could not be written: {unwritten}")
            raise
        finally:
            loader.close()

    def _compiled(self, state: Any, batch: Any) -> Any:
        started = time.monotonic()
        program = self.kept.take(state, batch)
        if program is None:
            return on_states(self._compile(state, batch), state)
        self.callbacks.on_message(
            f"train step there after {time.monotonic() - started:.1f} s, not compiled: its program was "
            f"read from {self.kept.path}"
        )
        return on_states(program, state)

    def _compile(self, state: Any, batch: Any) -> Any:
        losses = functools.partial(_losses, self.config.z_loss)
        train_step = build_train_step(self.trainer_config, losses, self.num_microbatches)
        num_before, started = len(devices.cache_lookups("train_step")), time.monotonic()
        with devices.without_cache() if self.kept.is_faulty else contextlib.nullcontext():
            program = compile_train_step(train_step, state, batch, self.trainer_config.device_mesh)
        lookup = next(iter(devices.cache_lookups("train_step")[num_before:]), None)
        where = "read from" if lookup and lookup.is_hit else "not in"
        counts = devices.cache_counts()
        self.callbacks.on_message(
            f"train step compiled in {time.monotonic() - started:.1f} s, {where} the compilation cache "
            f"({counts.hits} hits, {counts.misses} misses so far, {self.cache_dir}, key "
            f"{lookup.key if lookup else 'unknown'})"
        )
        if self.kept.is_faulty or (lookup and not lookup.is_hit):
            self.kept.keep(program, state, batch)
        return program

    def _state(self) -> Any:
        facts = describe_training(self.config, self.data.train)
        if checkpoints.committed_checkpoints(self.checkpoints_path):
            check_resumed(self.output_path, facts)
        state, checkpoint, self.torn = starting_state(
            self.config,
            self.model_config,
            self.trainer_config,
            self.optimizer,
            self.checkpoints_path,
            self.callbacks.on_message,
        )
        if checkpoint is None and self.is_writer:
            storage.write_json(storage.join(self.output_path, TRAINING_FILE), facts)
        return state

    def _kept_program(self) -> KeptProgram:
        key = program_key(
            self.config, self.plan, self.model_config, self.trainer_config, self.num_microbatches
        )
        return KeptProgram(self.cache_dir, key, self.callbacks.on_message)

    def _held_out_loss(self) -> HeldOutLoss | None:
        if self.data.validation:
            return HeldOutLoss(
                self.trainer_config, self.data.validation, self.execution.max_eval_rows
            )
        self.callbacks.on_message("no held-out rows: only the training loss is measured.")
        return None

    def _after_step(self, state: Any, completed: int, result: Any, checkpointer: Any) -> None:
        is_last = completed == self.num_train_steps
        rate = float(self.schedule(completed - 1))
        row = self.numbers.row(completed, result, rate, self.clock)
        self._check(completed, row)
        self.metrics.add(completed, **row)
        self.callbacks.on_progress(completed, self.num_train_steps, loss=round(row["loss"], 4))
        if completed % self.execution.eval_every_train_steps == 0 or is_last:
            self._evaluate(state, completed)
        if completed % self.execution.log_every_train_steps == 0 or is_last:
            self.callbacks.on_metrics(completed, **row)
            self.trackings.log(completed, row)
        is_stopping = not is_last and self.request.is_set()
        is_exported = not is_last and self.exports.is_due(completed)
        self.torn = checkpoints.without_step(self.torn, completed)
        with self.clock.phase("checkpoint"):
            checkpointer.after_step(
                state, completed, is_last=is_last, is_stopping=is_stopping or is_exported
            )
            if is_exported and not is_stopping:
                checkpointer.wait_until_finished()
                self._export(completed)
        self.metrics.add(completed, **self.clock.lap("eval", "checkpoint"))
        if is_stopping:
            self._stop(completed, checkpointer)

    def _check(self, completed: int, row: dict[str, float]) -> None:
        try:
            check_step(completed, row, self.config)
        except DivergedError as error:
            path = storage.join(self.output_path, f"diverged-step-{completed}.json")
            if self.is_writer:
                save_rows(path, self.data.train, self.plan, completed, self.config.batch_size, row)
            error.add_note(f"the rows of this train step are in {path}")
            self.callbacks.on_message(f"{error} Its rows are in {path}.")
            raise

    def _stop(self, completed: int, checkpointer: Any) -> None:
        checkpointer.wait_until_finished()
        saved = "saved" if completed else "nothing to save yet"
        raise PreemptedError(
            f"training: {self.request.reason}; stopped after train step {completed} of "
            f"{self.num_train_steps}, {saved}. Run it again to go on."
        )

    def _before_save(self) -> None:
        self.metrics.write()
        self.exports.finish()

    def _export(self, completed: int) -> None:
        if self.is_writer and completed < self.num_train_steps and self.exports.is_due(completed):
            self.exports.start(completed)

    def _evaluate(self, state: Any, completed: int) -> None:
        if self.evaluate is None:
            return
        with self.clock.phase("eval"):
            loss = self.evaluate(state.model)
        check_held_out(completed, loss)
        self.metrics.add(completed, heldout_loss=loss)
        self.callbacks.on_metrics(completed, heldout_loss=loss)
        self.trackings.log(completed, {"heldout_loss": loss})
        self.callbacks.on_message(f"train step {completed}: held-out loss {loss:.4f}")

    def _say_length(self) -> None:
        config, plan = self.config, self.plan
        parts = f" in {self.num_microbatches} microbatches" if self.num_microbatches > 1 else ""
        self.callbacks.on_message(
            f"{self.num_train_steps:,} train steps of {config.batch_size:,} rows x "
            f"{config.seq_len:,} tokens{parts}, {plan['num_train_epochs']:.2f} epochs, rows "
            f"{plan['fill']:.1%} full"
        )

    def _results(self, first: int, seconds: float) -> dict[str, Any]:
        losses, heldout = self.metrics.series("loss"), self.metrics.series("heldout_loss")
        counts = devices.cache_counts()
        times = self.clock.totals
        return {
            "final_loss": losses[-1][1] if losses else None,
            "heldout_loss_first": heldout[0][1] if heldout else None,
            "heldout_loss": heldout[-1][1] if heldout else None,
            "num_train_steps": self.num_train_steps,
            "positions": self.num_train_steps * self.config.batch_size * self.config.seq_len,
            **totals(self.metrics, self.config),
            **self.numbers.speeds(self.metrics, first, times["data"] + times["step"]),
            "seconds": round(seconds, 2),
            **{f"{name}_seconds": round(value, 3) for name, value in times.items()},
            "compilation_cache_hits": counts.hits,
            "compilation_cache_misses": counts.misses,
            "exports": [f"exports/step-{completed - 1}" for completed in self.exports.done],
            "failed_exports": len(self.exports.failed),
            "resumed_from": first or None,
            "checkpoint": f"checkpoints/step-{self.num_train_steps - 1}",
        }


def _losses(z_loss: float, model: Any, example: Any, key: Any) -> Any:
    return loss_sums(model, example, z_loss=z_loss, key=key)


def _num_microbatches(rows: int, per_device_batch_size: int | None) -> int:
    size = per_device_batch_size or rows
    if rows % size:
        raise TrainInputError(
            f"execution: per_device_batch_size must divide the {rows} rows of a device, got {size}. "
            f"Use a divisor of {rows}."
        )
    return rows // size
