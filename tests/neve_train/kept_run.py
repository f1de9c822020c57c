"""A program of the tests of the kept train step: python kept_run.py FOLDER MODE."""

import dataclasses
import hashlib
import os
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

from tests.neve_train.results import tell
from tests.neve_train.toy_run import make_inputs, train_config


def kept(folder: Path) -> Any:
    """A train step on all devices, compiled and read again; and every way in which it can't be."""
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
    from neve_train.kept_program import KeptProgram
    from neve_train.losses import LossSums
    from neve_train.train_step import build_train_step, compile_train_step, on_states, placed

    class Line(eqx.Module):
        """One weight for each position, spread over the devices."""

        weight: jax.Array
        name: str = eqx.field(static=True, default="line")

    def losses(model: Any, example: Any, key: Any) -> LossSums:
        ids = example.tokens.array.astype(jnp.float32)
        loss = jnp.sin(ids * model.weight + jrandom.normal(key, ids.shape))
        weight = example.loss_weight.array
        facts = {"largest": jnp.max(ids), "smallest": jnp.min(ids)}
        return LossSums(jnp.sum(loss * weight), jnp.sum(weight), facts)

    cache = devices.initialize(str(folder / "compiled-kept"))
    config = devices.base_trainer_config(
        {"data": jax.device_count(), "expert": 1, "context": 1, "model": 1},
        explicit_axes=False,
        train_batch_size=4,
        mp=devices.policy("f32"),
    )
    result: dict[str, Any] = {}
    messages: list[str] = []
    Pos, optimizer = Axis("position", 16), optax.adam(0.01)
    with devices.on_mesh(config):
        mesh = config.device_mesh
        split = NamedSharding(mesh, P("data"))

        def batch_of(num_rows: int) -> LmExample:
            values = np.arange(num_rows * 16, dtype=np.int32).reshape(num_rows, 16)

            def array(numbers: np.ndarray, last: Axis = Pos) -> Any:
                return hax.named(jax.device_put(numbers, split), (Axis("batch", num_rows), last))

            segments = array(values * 0), array(values * 0, Pos.alias("key_position"))
            mask = AttentionMask(is_causal=True, segment_ids=segments)
            return LmExample(array(values), array((values % 3 > 0) * np.float32(1)), mask)

        def fresh(name: str = "line") -> Any:
            weight = jax.device_put(np.linspace(0, 1, 16, dtype=np.float32), split)
            model = Line(weight, name)
            state = TrainerState.init(optimizer, model, key=jrandom.PRNGKey(3), mp=config.mp)
            return placed(state, state, mesh)

        def digests(program: Any) -> list[str]:
            """Trains three steps; returns what each array and result is made of."""
            state, found = fresh(), []
            run = on_states(program, state)
            for _ in range(3):
                before = state
                state, told = run(before, batch)
                leaves = jax.tree.leaves((eqx.filter(state, eqx.is_array), told))
                found += [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves]
                found += sorted(told.facts)
                found.append(f"used up: {before.model.weight.is_deleted()}")
                found.append(f"{state.model.name} {state.model.weight.sharding}")
            return found

        def take(name: str, key: str = "a" * 64, state: Any = None, other: Any = None) -> Any:
            """Reads the file; notes what was told, and whether it must be replaced."""
            messages.clear()
            file = KeptProgram(cache, key, messages.append)
            program = file.take(fresh() if state is None else state, other or batch)
            file.finish()
            result[name] = {
                "is_there": program is not None,
                "messages": list(messages),
                "is_faulty": file.is_faulty,
            }
            return program

        batch = batch_of(4)
        train_step = build_train_step(config, losses)
        take("absent")
        compiled = compile_train_step(train_step, fresh(), batch, mesh)
        lookups = devices.cache_lookups("train_step")
        file = KeptProgram(cache, "a" * 64, messages.append)
        file.keep(compiled, fresh(), batch)
        file.finish()
        read = take("written")
        first, second = digests(compiled), digests(read)
        result["same"] = first == second
        result["num_told"] = len(first)
        result["used_up"] = "used up: True" in second and "used up: False" not in second
        take("another batch", other=batch_of(8))
        take("another fixed part", state=fresh("curve"))

        path = Path(file.path)
        whole = path.read_bytes()
        nonsense = whole.split(b"\n", 2)[1] + b"\n" + zlib.compress(b"nonsense", 1)
        for name, content in {
            "one bit": whole[:-900] + bytes([whole[-900] ^ 1]) + whole[-899:],
            "cut": whole[: len(whole) // 2],
            "empty": b"",
            "of another version": hashlib.sha256(nonsense).hexdigest().encode() + b"\n" + nonsense,
        }.items():
            path.write_bytes(content)
            take(name)
        with devices.without_cache():
            anew = compile_train_step(train_step, fresh(), batch, mesh)
        again = compile_train_step(train_step, fresh(), batch, mesh)
        later = devices.cache_lookups("train_step")
        result["is_hit"] = [lookup.is_hit for lookup in (*lookups, *later[len(lookups) :])]
        file = KeptProgram(cache, "a" * 64, messages.append)
        file.keep(anew, fresh(), batch)
        file.finish()
        result["repaired"] = digests(take("written anew")) == first == digests(again)
        messages.clear()
        (Path(cache) / "blocked").write_text("no folder")
        file = KeptProgram(str(Path(cache) / "blocked"), "a" * 64, messages.append)
        file.keep(anew, fresh(), batch)
        file.finish()
        result["blocked"] = list(messages)
    return result


def keys(folder: Path) -> Any:
    """The keys of the toy and of trainings and environments that differ from it in one thing."""
    import jax
    import neve_train
    from neve_train import devices
    from neve_train.data import read_plan
    from neve_train.families import read_model_config
    from neve_train.program_key import program_key

    devices.initialize(str(folder / "compiled-kept"))
    base = train_config(folder)
    axes = {"data": 2, "expert": 1, "context": 1, "model": 1}

    def key(
        *,
        plan: dict[str, Any] | None = None,
        mesh: dict[str, int] | None = None,
        microbatches: int = 1,
        trainer: dict[str, Any] | None = None,
        **changes: Any,
    ) -> str:
        config = dataclasses.replace(base, **changes)
        trainer_config = devices.base_trainer_config(
            axes | (mesh or {}),
            **(
                {"train_batch_size": 4, "mp": devices.policy(config.precision), "id": "toy"}
                | (trainer or {})
            ),
        )
        model_config = read_model_config(str(config.model), config.capacity_factor)
        planned = read_plan(base) | (plan or {})
        return program_key(config, planned, model_config, trainer_config, microbatches)

    other = folder / "other-model"
    shutil.copytree(folder / "base", other)
    first = key()
    same = {
        "again": key(),
        "cadence": key(
            execution=dataclasses.replace(
                base.execution, checkpoint_every_train_steps=7, trackers=(), tracker_tags=("a",)
            )
        ),
        "run": key(trainer={"id": "other"}),
        "model folder": key(model=str(other)),
        "rows": key(plan={"num_rows": 9}),
    }
    os.environ["NVIDIA_API_KEY"] = "of some service"
    same["secret"] = key()
    del os.environ["NVIDIA_API_KEY"]
    text = (other / "config.json").read_text()
    (other / "config.json").write_text(text.replace("rope_theta", "rope_thetas"))
    different = {
        "optimizer": key(optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-3)),
        "z_loss": key(z_loss=1e-4),
        "seed": key(seed=1),
        "capacity": key(capacity_factor=2.0),
        "precision": key(precision="p=f32,c=f32"),
        "train steps": key(plan={"num_train_steps": 9}),
        "packing": key(plan={"packing": "packed"}),
        "microbatches": key(microbatches=2),
        "mesh": key(mesh={"data": 1, "context": 2}),
        "trainer": key(trainer={"train_batch_size": 8}),
        "model": key(model=str(other)),
    }
    os.environ["XLA_FLAGS"] += " --xla_cpu_enable_fast_math=true"
    different["environment"] = key()
    os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].rpartition(" ")[0]
    jax.config.update("jax_default_matmul_precision", "highest")
    different["jax"] = key()
    jax.config.update("jax_default_matmul_precision", None)
    package = folder / "site" / "a_package-2.dist-info"
    package.mkdir(parents=True)
    sys.path.append(str(package.parent))
    different["package"] = key()
    sys.path.pop()
    copy = folder / "neve_train"
    shutil.copytree(neve_train.__path__[0], copy)
    neve_train.__path__[:] = [str(copy)]
    same["copied code"] = key()
    source = copy / "losses.py"
    source.write_text(source.read_text() + "\n")
    different["edited code"] = key()
    return {
        "first": first,
        "same": {name: value == first for name, value in same.items()},
        "num_different": len({first, *different.values()}) - 1,
        "different": sorted(different),
    }


MODES = {"kept": kept, "keys": keys}

if __name__ == "__main__":
    root = Path(sys.argv[1])
    if not root.exists():
        make_inputs(root)
    tell(MODES[sys.argv[2]](root))
