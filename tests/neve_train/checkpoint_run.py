"""A program of the tests of checkpoints, in a process of its own: python checkpoint_run.py FOLDER MODE."""

import dataclasses
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.neve_train.results import tell
from tests.neve_train.toy_run import train_config


@dataclasses.dataclass
class Small:
    """A state of a few numbers."""

    saveable_state: Any


def torn(folder: Path) -> Any:
    """Saves small states, breaks what is saved in several ways, and goes on."""
    import jax
    import jax.numpy as jnp
    from neve_train import checkpoints, devices
    from neve_train.errors import CheckpointError
    from neve_train.export import read_newest

    from steps.train_sft import ExecutionConfig

    root = folder / "torn"
    result: dict[str, Any] = {}
    messages: list[str] = []

    def checkpointer(name: str, **options: Any) -> Any:
        execution = ExecutionConfig(**({"checkpoint_every_train_steps": 1} | options.pop("to", {})))
        return checkpoints.NotingCheckpointer(
            str(root / name), execution, before_save=lambda: None, **options
        )

    def save(writer: Any, completed: int, size: int = 3) -> None:
        state = Small({"x": jnp.full(size, completed, jnp.float32)})
        writer.after_step(state, completed, is_last=False, is_stopping=False)
        writer.wait_until_finished()

    def load(path: str, size: int = 3) -> list[float]:
        like: dict[str, Any] = {"x": jax.ShapeDtypeStruct((size,), jnp.float32)}
        checkpoints.check_arrays(path, like)
        return checkpoints.load_checkpoint(like, path)["x"].tolist()

    def newest(name: str) -> list[float] | None:
        return checkpoints.restore_newest(str(root / name), load, messages.append)[0]

    def error_of(action: Callable[..., Any], *arguments: Any) -> str:
        try:
            return f"none, but {action(*arguments)}"
        except (CheckpointError, ValueError, OSError) as error:
            return f"{type(error).__name__}: {error}"

    devices.initialize(str(folder / "compiled"))
    axes = {"data": 1, "expert": 1, "context": 1, "model": 1}
    with devices.on_mesh(devices.base_trainer_config(axes)):
        result["nothing"] = newest("nothing")

        writer = checkpointer("unmarked")
        for completed in (1, 2):
            save(writer, completed)
        for text in ("", '{"step": 1', "{}"):
            (root / "unmarked" / "step-1" / "metadata.json").write_text(text)
            result.setdefault("unmarked", []).append(newest("unmarked"))
        result["unmarked_message"] = messages[-1]
        result["unmarked_export"] = error_of(
            read_newest, str(root / "unmarked"), load, messages.append
        )
        save(checkpointer("unmarked"), 2)
        result["unmarked_again"] = newest("unmarked")
        shutil.rmtree(root / "unmarked" / "step-0")
        (root / "unmarked" / "step-1" / "metadata.json").write_text("")
        result["only_unmarked"] = error_of(newest, "unmarked")

        save(checkpointer("leftover"), 1, size=8)
        (root / "leftover" / "step-0" / "metadata.json").unlink()  # killed before it was committed
        result["uncommitted"] = newest("leftover")
        save(checkpointer("leftover"), 1)
        result["leftover"] = newest("leftover")

        writer = checkpointer("failed")
        save(writer, 1)
        (root / "failed" / "step-1").write_text("")  # a file where a folder must be
        result["failed"] = error_of(save, writer, 2)
        result["after_failed"] = newest("failed")
        (root / "failed" / "step-1").unlink()
        save(checkpointer("failed"), 2)
        result["saved_again"] = newest("failed")

        seconds = iter([0.0, 10.0, 59.0, 59.0, 61.0, 61.0, 100.0, 122.0, 122.0])
        writer = checkpointer(
            "clock",
            to={"checkpoint_every_train_steps": None, "checkpoint_every_seconds": 60},
            clock=lambda: next(seconds),
        )
        for completed in (2, 3, 4, 5):
            save(writer, completed)
        result["by_clock"] = sorted(path.name for path in (root / "clock").iterdir())

        save(checkpointer("shape"), 1, size=8)
        result["shape"] = error_of(load, str(root / "shape" / "step-0"))
        writer = checkpointer("more")
        both = Small({"x": jnp.zeros(3), "y": jnp.zeros(2), "number": 1.0})
        writer.after_step(both, 1, is_last=True, is_stopping=False)
        writer.wait_until_finished()
        result["more"] = error_of(load, str(root / "more" / "step-0"))
    return result


def agreed(folder: Path) -> Any:
    """One of two processes: the second can't read the newest of two checkpoints, the first not at once."""
    import jax

    index = int(os.environ["TASK_INDEX"])
    jax.distributed.initialize(os.environ["COORDINATOR"], 2, index)
    from neve_train import checkpoints

    reads: list[str] = []

    def load(path: str) -> str:
        reads.append(path.rpartition("/")[2])
        if path.endswith("step-6") if index == 1 else reads.count("step-3") == 1:
            raise OSError("connection reset")
        return path.rpartition("/")[2]

    messages: list[str] = []
    found, _, torn = checkpoints.restore_newest(
        str(folder / "agreed" / "checkpoints"), load, messages.append
    )
    torn_steps = [candidate.step for candidate in torn]
    return {"found": found, "torn": torn_steps, "messages": messages, "reads": reads}


def padded(folder: Path) -> Any:
    """A tokenizer of fewer tokens than the model has: every size is the model's, to the export."""
    import jax
    from neve_chat.templates import load_template
    from neve_train import checkpoints, devices
    from neve_train.errors import TrainInputError
    from neve_train.export import export
    from neve_train.families import read_model_config
    from neve_train.hf_folder import iter_tensors
    from neve_train.optimizer import adam
    from neve_train.train_state import starting_state

    from steps.make_snowball_base import MakeSnowballBaseConfig, make_snowball_base
    from steps.train_sft import ExecutionConfig

    model = folder / "padded-tokenizer"
    shutil.copytree(folder / "tokenizer", model)
    values = json.loads((model / "config.json").read_text())
    num_tokens, size = values["vocab_size"], values["vocab_size"] + 64
    (model / "config.json").write_text(json.dumps(values | {"vocab_size": size}))
    make_snowball_base(MakeSnowballBaseConfig(input=str(model)), str(folder / "padded-base"))
    config = dataclasses.replace(train_config(folder), model=str(folder / "padded-base"))
    axes = {"data": 1, "expert": 1, "context": 1, "model": 1}
    devices.initialize(str(folder / "compiled"))
    trainer_config = devices.base_trainer_config(axes, mp=devices.policy(config.precision))
    optimizer = adam(config.optimizer, 8).build(8)
    output = folder / "padded"

    def start(config: Any) -> Any:
        with devices.on_mesh(trainer_config):
            model_config = read_model_config(str(config.model))
            path = str(output / "checkpoints")
            return starting_state(
                config, model_config, trainer_config, optimizer, path, lambda text: None
            )[0]

    state = start(config)
    axis_sizes = sorted(
        {
            length
            for leaf in jax.tree.leaves((state.model, state.opt_state))
            for length in getattr(leaf, "shape", ())
            if length in (num_tokens, size)
        }
    )
    with devices.on_mesh(trainer_config):
        writer = checkpoints.NotingCheckpointer(
            str(output / "checkpoints"), ExecutionConfig(), before_save=lambda: None
        )
        writer.after_step(
            dataclasses.replace(state, step=state.step + 1), 1, is_last=True, is_stopping=False
        )
        writer.wait_until_finished()
    resumed = start(config)
    template = load_template("marin").text
    export(
        str(output),
        str(folder / "padded-base"),
        str(folder / "tokenizer"),
        template,
        str(output / "hf"),
        on_message=lambda text: None,
    )
    shapes = [values.shape for _, values in iter_tensors(str(output / "hf"))]
    small = folder / "small-base"
    shutil.copytree(folder / "base", small)
    (small / "config.json").write_text(json.dumps(values | {"vocab_size": num_tokens - 1}))
    try:
        start(dataclasses.replace(config, model=str(small)))
        refusal = "none"
    except TrainInputError as error:
        refusal = str(error)
    return {
        "num_tokens": num_tokens,
        "size": size,
        "axis_sizes": axis_sizes,
        "resumed_step": int(resumed.step),
        "exported": sorted({shape[0] for shape in shapes if shape and shape[0] >= num_tokens}),
        "exported_config": json.loads((output / "hf" / "config.json").read_text())["vocab_size"],
        "refusal": refusal,
    }


def unwritten(folder: Path) -> Any:
    """Trains while no file may grow beyond 200 kB: from train step 4 on, then 7 on, then not at all."""
    from neve_train.errors import CheckpointError
    from neve_train.training import Callbacks, train

    output = folder / "unwritten"
    result: dict[str, Any] = {}
    for name, full_from in (("behind", 4), ("last", 7), ("whole", None)):
        done: list[int] = []

        def count(step: int, full_from: int | None = full_from, **values: float) -> None:
            if "loss" not in values:
                return  # held-out loss
            done.append(step)  # noqa: B023  only called in this turn of the loop
            if step == full_from:
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            if full_from == 4 and step == 7:
                time.sleep(3)  # train step 6 is saved by a thread

        try:
            facts = train(train_config(folder), str(output), Callbacks(on_metrics=count))
            result[name] = {"done": done, "resumed_from": facts["resumed_from"]}
        except CheckpointError as error:
            result[name] = {"done": done, "error": str(error)}
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        result[name]["committed"] = sorted(
            path.parent.name for path in output.glob("checkpoints/*/metadata.json")
        )
        rows = (output / "loss.jsonl").read_text().splitlines()
        result[name]["rows"] = [json.loads(row)["step"] for row in rows]
    return result


MODES = {"torn": torn, "padded": padded, "agreed": agreed, "unwritten": unwritten}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    tell(MODES[sys.argv[2]](root))
