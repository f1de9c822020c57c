"""A program of the tests of the training loop, in a process of its own: python loop_run.py FOLDER MODE."""

import dataclasses
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from tests.neve_train.results import tell
from tests.neve_train.toy_run import make_inputs, mix, train_config

CASE_053 = Path(__file__).with_name("case_053.json")


class CompiledPrograms(logging.Handler):
    """Names of the programs that jax compiles, or reads from its cache."""

    def __init__(self) -> None:
        """Listens from now on."""
        import jax

        super().__init__()
        self.names: list[str] = []
        jax.config.update("jax_log_compiles", True)
        logger = logging.getLogger("jax._src.interpreters.pxla")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Notes a program."""
        text = record.getMessage()
        if text.startswith("Compiling "):
            self.names.append(text.split()[1])


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def stopped(folder: Path) -> Any:
    """Told to stop after train step 4, goes on in the same process; what changed is refused."""
    from neve_train.errors import CheckpointError, PreemptedError, TrainInputError
    from neve_train.training import Callbacks, train

    output_path = folder / "told"
    programs = CompiledPrograms()
    result: dict[str, Any] = {}
    messages: list[str] = []

    def tell(step: int, **values: float) -> None:
        if step == 4 and "loss" in values:
            os.kill(os.getpid(), signal.SIGUSR1)

    try:
        train(
            train_config(folder),
            str(output_path),
            Callbacks(on_metrics=tell, on_message=messages.append),
        )
    except PreemptedError as error:
        result["preempted"] = [str(error), error.exit_code]
    result["checkpoints"] = sorted(path.name for path in (output_path / "checkpoints").iterdir())
    result["train_step_programs"] = [name for name in programs.names if "train_step" in name]
    result["rows_when_stopped"] = read_rows(output_path / "loss.jsonl")
    shutil.copytree(output_path, folder / "told-cold")
    other = train_config(folder, plan="plan-small-batch")
    mix(folder, "plan-small-batch", batch_size=2)
    changes = {"batch": dataclasses.replace(other, batch_size=2)}
    optimizer = dataclasses.replace(other.optimizer, learning_rate=1e-3)
    changes["rate"] = dataclasses.replace(train_config(folder), optimizer=optimizer)
    for name, config in changes.items():
        try:
            train(config, str(output_path))
        except TrainInputError as error:
            result[f"changed_{name}"] = str(error)
    disagreeing = folder / "told-disagreeing"
    shutil.copytree(output_path, disagreeing)
    metadata = disagreeing / "checkpoints" / "step-3" / "metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"step": 5}))
    try:
        train(train_config(folder), str(disagreeing))
    except CheckpointError as error:
        result["disagreeing"] = str(error)
    lines = (output_path / "loss.jsonl").read_text().splitlines()
    cut = "\n".join([*lines[:2], lines[2][:20], *lines[3:]])
    (output_path / "loss.jsonl").write_text(cut)
    (folder / "told-cold" / "loss.jsonl").write_text("\n".join(lines) + "\n")
    result["resumed"] = train(
        train_config(folder), str(output_path), Callbacks(on_message=messages.append)
    )
    result["rows"] = read_rows(output_path / "loss.jsonl")
    result["messages"] = messages
    return result


def cold(folder: Path) -> Any:
    """Goes on from the same checkpoint with an empty compilation cache."""
    from neve_train.training import Callbacks, train

    config = train_config(folder)
    execution = dataclasses.replace(
        config.execution, compilation_cache_dir=str(folder / "compiled-anew")
    )
    messages: list[str] = []
    programs = CompiledPrograms()
    results = train(
        dataclasses.replace(config, execution=execution),
        str(folder / "told-cold"),
        Callbacks(on_message=messages.append),
    )
    return {
        "results": results,
        "rows": read_rows(folder / "told-cold" / "loss.jsonl"),
        "messages": messages,
        "train_step_programs": [name for name in programs.names if "train_step" in name],
        "evaluation_programs": [name for name in programs.names if "accum_for_batch" in name],
    }


def sums(folder: Path) -> Any:
    """One train step on losses from a table, cut into more and more microbatches."""
    import equinox as eqx
    import haliax as hax
    import jax
    import jax.numpy as jnp
    import jax.random as jrandom
    import numpy as np
    import optax
    from haliax import Axis
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P
    from levanter.layers.attention import AttentionMask
    from levanter.models.lm_model import LmExample
    from levanter.trainer_state import TrainerState
    from neve_train import devices
    from neve_train.losses import LossSums
    from neve_train.train_step import build_train_step, compile_train_step, on_states, placed

    class Scaled(eqx.Module):
        """The loss of a position is scale * the number that stands in the table for its token."""

        scale: jax.Array

    parts = json.loads(CASE_053.read_text())["microbatches"]
    table = np.concatenate([[0.0], *(part["per_token_loss"] for part in parts)]).astype(np.float32)
    num_devices, numbers = jax.device_count(), iter(range(1, len(table)))
    table = np.append(table, np.float32("nan"))
    Batch, Pos = Axis("batch", 4), Axis("position", 12)
    tokens = np.zeros((4, 12), np.int32)
    weights = np.zeros((4, 12), np.float32)
    segments = np.full((4, 12), -1, np.int32)
    for row, part in enumerate(parts):
        size = len(part["weights"])
        tokens[row, :size] = [next(numbers) for _ in range(size)]
        weights[row, :size] = part["weights"]
        segments[row, :size] = 0

    poisoned = tokens.copy()
    poisoned[1, 2] = len(table) - 1  # a trained token of the second part

    def losses(model: Any, example: Any, key: Any) -> LossSums:
        loss = jnp.asarray(table)[example.tokens.array] * model.scale
        weight = example.loss_weight.array
        count = jnp.sum(weight > 0, dtype=jnp.int32)
        return LossSums(jnp.sum(loss * weight), jnp.sum(weight), {"counted": count})

    devices.initialize(str(folder / "compiled"))
    config = devices.base_trainer_config(
        {"data": num_devices, "expert": 1, "context": 1, "model": 1},
        explicit_axes=False,
        train_batch_size=4,
        mp=devices.policy("f32"),
    )
    found = {}
    with devices.on_mesh(config):
        mesh = config.device_mesh

        def array(values: np.ndarray, *axes: Axis) -> Any:
            spec = P(("replica_dcn", "data", "expert"))
            return hax.named(jax.device_put(values, NamedSharding(mesh, spec)), axes)

        KeyPos = Pos.alias("key_position")
        for name, factor, ids in (
            ("case", 1.0, tokens),
            ("nothing trained", 0.0, tokens),
            ("no number", 1.0, poisoned),
        ):
            batch = LmExample(
                tokens=array(ids, Batch, Pos),
                loss_weight=array(weights * np.float32(factor), Batch, Pos),
                attn_mask=AttentionMask(
                    is_causal=True,
                    segment_ids=(array(segments, Batch, Pos), array(segments, Batch, KeyPos)),
                ),
            )
            for num_microbatches in (n for n in (1, 2, 4) if n * num_devices <= 4):
                state = TrainerState.init(
                    optax.sgd(0.5),
                    Scaled(jnp.ones(())),
                    key=jrandom.PRNGKey(0),
                    mp=config.mp,
                )
                state = placed(state, state, mesh)
                step = build_train_step(config, losses, num_microbatches)
                program = compile_train_step(step, state, batch, mesh)
                state, result = on_states(program, state)(state, batch)
                found[f"{name}, {num_microbatches}"] = {
                    "loss": float(result.loss),
                    "gradient_norm": float(result.gradient_norm),
                    "trained_tokens": int(result.trained_tokens),
                    "real_tokens": int(result.real_tokens),
                    "counted": int(result.facts["counted"]),
                    "scale": float(state.model.scale),
                    "step": int(state.step),
                }
    return found


def microbatched(folder: Path) -> Any:
    """Trains packed rows in float32, whole and one row at a time."""
    from steps.train_sft import train_sft

    found = {}
    for name, size in (("cut", 1), ("whole", None)):
        config = train_config(folder, plan="plan-packed", per_device_batch_size=size)
        config = dataclasses.replace(config, precision="p=f32,c=f32")
        train_sft(config, str(folder / f"batch-{name}"))
        found[name] = read_rows(folder / f"batch-{name}" / "loss.jsonl")
    return found


def diverged(folder: Path) -> Any:
    """Trains with a learning rate that ends in no number; then asks for a tracker that isn't there."""
    from neve_train.errors import DivergedError
    from neve_train.training import train

    from steps.train_sft import OptimizerConfig

    config = train_config(folder)
    broken = dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=1e30))
    output_path = folder / "diverged"
    result: dict[str, Any] = {}
    try:
        train(broken, str(output_path))
    except DivergedError as error:
        result["error"] = str(error)
    (kept,) = output_path.glob("diverged-step-*.json")
    result["kept"] = [kept.name, json.loads(kept.read_text())]
    result["checkpoints"] = (output_path / "checkpoints").exists()
    result["rows"] = read_rows(output_path / "loss.jsonl")
    often = dataclasses.replace(
        config.execution, eval_every_train_steps=1, checkpoint_every_train_steps=1
    )
    ruined = folder / "ruined"
    try:
        # Beyond float32: the weights after the first update are no numbers.
        infinite = dataclasses.replace(broken, optimizer=OptimizerConfig(learning_rate=1e39))
        train(dataclasses.replace(infinite, execution=often), str(ruined))
    except DivergedError as error:
        result["ruined"] = str(error)
    result["ruined_checkpoints"] = (ruined / "checkpoints").exists()
    return result


def policies(folder: Path) -> Any:
    """Saves a small state after each of 12 train steps, and looks at what is there after each."""
    import jax.numpy as jnp
    from neve_train import devices
    from neve_train.checkpoints import NotingCheckpointer
    from neve_train.families import read_model_config
    from neve_train.optimizer import adam

    from steps.train_sft import ExecutionConfig, OptimizerConfig

    @dataclasses.dataclass
    class Small:
        saveable_state: Any

    def keep(name: str, stop_at: int | None = None, **execution: Any) -> list[list[int]]:
        path = folder / "policies" / name
        checkpointer = NotingCheckpointer(
            str(path), ExecutionConfig(**execution), before_save=lambda: None
        )
        found = []
        for completed in range(1, 13):
            state = Small({"x": jnp.full(3, completed)})
            checkpointer.after_step(
                state, completed, is_last=completed == 12, is_stopping=completed == stop_at
            )
            checkpointer.wait_until_finished()
            folders = path.iterdir() if path.exists() else ()
            found.append(sorted(int(each.name[5:]) + 1 for each in folders))
        return found

    devices.initialize(str(folder / "compiled"))
    with devices.on_mesh(
        devices.base_trainer_config({"data": 1, "expert": 1, "context": 1, "model": 1})
    ):
        kept = {
            "all": keep("all", checkpoint_every_train_steps=5),
            "newest": keep(
                "newest",
                checkpoint_every_train_steps=2,
                keep_every_train_steps=6,
                keep_last_checkpoints=2,
            ),
            "by time": keep("time", checkpoint_every_seconds=1e-6),
            "stopped": keep("stopped", stop_at=1),
        }
        return kept | {"decayed": _decayed(folder, read_model_config, adam, OptimizerConfig)}


def _decayed(folder: Path, read_model_config: Any, adam: Any, config_type: Any) -> dict[str, bool]:
    """Returns whether weight decay touches each kind of weight of the toy, by its name."""
    import equinox as eqx
    import jax
    import jax.random as jrandom
    from haliax import Axis
    from levanter.utils.jax_utils import leaf_key_paths

    config = read_model_config(str(folder / "base"))
    model = eqx.filter_eval_shape(
        config.build, Axis("vocab", config.vocab_size), key=jrandom.PRNGKey(0)
    )
    arrays = eqx.filter(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    made = jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape), arrays)
    mask = adam(config_type(weight_decay=0.1), 8).build_weight_decay_mask()(made)
    return dict(
        zip(jax.tree.leaves(leaf_key_paths(made)), map(bool, jax.tree.leaves(mask)), strict=True)
    )


def together(folder: Path) -> Any:
    """One process of a run of TASK_COUNT; says which rows it read."""
    import jax

    count, index = int(os.environ["TASK_COUNT"]), int(os.environ["TASK_INDEX"])
    if count > 1:
        jax.distributed.initialize(os.environ["COORDINATOR"], count, index)
    from neve_train import planned_rows
    from neve_train.training import Callbacks, train

    read: list[int] = []
    messages: list[str] = []
    get_batch = planned_rows.PlannedRows.get_batch

    async def noting(self: Any, indices: Any) -> Any:
        read.extend(int(number) for number in indices)
        return await get_batch(self, indices)

    planned_rows.PlannedRows.get_batch = noting  # what it reads is what this test is about
    config = train_config(folder, mesh=(("data", 2),))
    config = dataclasses.replace(config, precision="p=f32,c=f32")
    output_path = folder / os.environ["OUTPUT_NAME"]
    results = train(config, str(output_path), Callbacks(on_message=messages.append))
    return {
        "num_devices": jax.device_count(),
        "num_local_devices": jax.local_device_count(),
        "read": sorted(set(read)),
        "messages": messages,
        "results": results,
        "rows": read_rows(output_path / "loss.jsonl"),
    }


MODES = {
    "stopped": stopped,
    "cold": cold,
    "sums": sums,
    "microbatched": microbatched,
    "diverged": diverged,
    "policies": policies,
    "together": together,
}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    if not root.exists():
        make_inputs(root)
    tell(MODES[sys.argv[2]](root))
