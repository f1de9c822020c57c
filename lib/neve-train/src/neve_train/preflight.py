"""Will a training fit its accelerator? Found out on a CPU, from the real model and mesh, without weights.

    python -m neve_train.preflight < request.json

prints one JSON document: {"report": ..., "text": ...}, or {"error": ...} where the input is wrong. Exit
codes: 0 it fits, 2 it doesn't or the input is wrong. It is a process of its own because the number of
virtual devices is fixed when jax starts.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neve_train.accelerators import parse_accelerator
from neve_train.config import LoraConfig, OptimizerConfig
from neve_train.errors import TrainInputError
from neve_train.mesh import check_mesh
from neve_train.preflight_fit import Planned
from neve_train.preflight_memory import ArrayLeaf, ModelShape, Workload
from neve_train.preflight_report import make_report, report_text

__all__ = [
    "PreflightRequest",
    "array_leaves",
    "model_shape",
    "plan_training",
    "trace_state",
    "use_virtual_devices",
]

_SCHEDULE_TRAIN_STEPS = 1000  # where epochs decide; the schedule's length changes no shape


@dataclass(frozen=True, kw_only=True)
class PreflightRequest:
    """What is asked: a recipe's fields that memory and time depend on."""

    name: str
    """Of the recipe, for the report."""
    model: str
    """Folder with config.json."""
    accelerator: str
    """Count and kind, such as 32xH100."""
    mesh: dict[str, int]
    """Axis sizes."""
    seq_len: int
    """Positions of a row."""
    batch_size: int
    """Rows of a train step over all devices."""
    per_device_batch_size: int | None = None
    """Rows of a device and microbatch; None: its whole share."""
    precision: str = "p=f32,c=bfloat16"
    """jmp policy."""
    capacity_factor: float = 1.25
    """Rows that an expert shard accepts over its even share."""
    optimizer: dict[str, Any] = field(default_factory=dict)
    """Fields of OptimizerConfig."""
    adapter: dict[str, Any] | None = None
    """Fields of LoraConfig; None: the whole model is trained."""
    num_train_steps: int | None = None
    """Train steps, where the recipe fixes them."""


def use_virtual_devices(count: int) -> None:
    """Lets jax, not yet imported, see `count` CPU devices and nothing else."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if "host_platform_device_count" not in flag]
    flags.append(f"--xla_force_host_platform_device_count={count}")
    os.environ |= {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}


def plan_training(request: PreflightRequest) -> Planned:
    """Returns the arrays of the training with their shardings, and everything else that counts.

    Must run where jax sees as many devices as the accelerator has.

    Raises:
        TrainInputError: Accelerator, model, mesh or precision are wrong or don't fit together.
    """
    from neve_train import devices
    from neve_train.families import family_of, model_split, read_model_config

    num_devices, accelerator = parse_accelerator(request.accelerator)
    split = model_split(request.model)
    config = read_model_config(request.model, request.capacity_factor)
    shape = model_shape(config)
    sizes = check_mesh(
        num_devices,
        request.mesh,
        request.batch_size,
        request.seq_len,
        split,
    )
    policy = devices.policy(request.precision)
    leaves = array_leaves(*trace_state(config, request, sizes, policy))
    return Planned(
        name=request.name,
        family=family_of(request.model).module,
        accelerator=accelerator,
        leaves=leaves,
        shape=shape,
        split=split,
        work=Workload(
            sizes=sizes,
            seq_len=request.seq_len,
            batch_size=request.batch_size,
            per_device_batch_size=request.per_device_batch_size,
            compute_itemsize=np.dtype(policy.compute_dtype).itemsize,
            capacity_factor=request.capacity_factor,
        ),
        num_train_steps=request.num_train_steps,
        host_bytes=_host_bytes(leaves),
    )


def model_shape(config: Any) -> ModelShape:
    """Returns the numbers of Levanter's config that memory and speed depend on."""

    def first(*names: str, default: int = 0) -> int:
        found = (getattr(config, name, None) for name in names)
        return next((int(value) for value in found if value is not None), default)

    is_snowball = hasattr(config, "shared_expert_intermediate_dim")
    num_experts = first("num_experts", "n_routed_experts")
    routed_size = first("moe_intermediate_dim", "intermediate_dim") if num_experts else 0
    dense_size = 0 if num_experts else config.intermediate_dim
    num_full_layers = config.num_layers
    if is_snowball:
        from levanter.models.snowball import num_long_attention_layers

        num_full_layers = num_long_attention_layers(config.num_layers)
    return ModelShape(
        hidden_size=config.hidden_dim,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=first(
            "inferred_head_dim", "head_dim", default=config.hidden_dim // config.num_heads
        ),
        mlp_size=first("shared_expert_intermediate_dim", default=dense_size),
        num_experts=num_experts,
        num_experts_per_token=first("num_experts_per_token", "num_experts_per_tok"),
        expert_size=routed_size,
        vocab_size=config.vocab_size,
        has_tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        max_seq_len=config.max_seq_len,
        window=config.sliding_window if is_snowball else 0,
        num_full_layers=num_full_layers,
        stacks_layers=is_snowball,
        num_attention_branches=2 if is_snowball else 1,
    )


def trace_state(
    config: Any, request: PreflightRequest, sizes: dict[str, int], policy: Any
) -> tuple[Any, Any]:
    """Returns the training state as training would make it, unmade, and its TrainerConfig.

    Args:
        config: Levanter's config of the model.
        request: Optimizer and number of train steps.
        sizes: Sizes of all mesh axes; they multiply to the devices that jax sees.
        policy: Precision.
    """
    import equinox as eqx
    import jax
    from haliax import Axis
    from levanter.trainer_state import TrainerState

    from neve_train import devices
    from neve_train.optimizer import adam

    trainer = devices.base_trainer_config(
        sizes, explicit_axes=config.requires_explicit_mesh_axes, mp=policy
    )
    num_train_steps = request.num_train_steps or _SCHEDULE_TRAIN_STEPS
    adam_config = adam(OptimizerConfig(**request.optimizer), num_train_steps)
    optimizer = adam_config.build(num_train_steps)

    def init(key: Any) -> Any:
        model = config.build(Axis("vocab", config.vocab_size), key=key)
        trained: Any = True
        if request.adapter is not None:
            from neve_train import lora

            model = lora.adapted(model, LoraConfig(**request.adapter), key)
            trained = lora.trainable(model)
        return TrainerState.init(optimizer, model, key=key, is_trainable=trained, mp=policy)

    with devices.on_mesh(trainer):
        return eqx.filter_eval_shape(init, jax.random.PRNGKey(0)), trainer


def array_leaves(state: Any, trainer: Any) -> tuple[ArrayLeaf, ...]:
    """Returns the arrays of weights and optimizer in what trace_state returns."""
    from neve_train import devices

    mapping = trainer.parameter_axis_mapping
    with devices.on_mesh(trainer):
        trained = {path for path, _ in _arrays(state.trainable_model)}
        weights = _leaves("weights", state.model, mapping)
        return (
            *(dataclasses.replace(leaf, is_trained=path in trained) for path, leaf in weights),
            *(leaf for _, leaf in _leaves("optimizer", state.opt_state, mapping)),
        )


def _arrays(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields path and array of a tree, NamedArrays whole."""
    import jax
    from haliax import NamedArray

    for path, node in jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda node: isinstance(node, NamedArray)
    ):
        if hasattr(node, "shape") and hasattr(node, "dtype"):
            yield jax.tree_util.keystr(path), node


def _leaves(part: str, tree: Any, mapping: Any) -> Iterator[tuple[str, ArrayLeaf]]:
    import jax
    from haliax import NamedArray
    from haliax.partitioning import pspec_for_axis

    for path, node in _arrays(tree):
        if isinstance(node, NamedArray):
            array, spec = node.array, pspec_for_axis(node.axes, mapping)
            is_layer = any(axis.name == "layer" for axis in node.axes)
        else:
            array, spec = node, jax.typeof(node).sharding.spec
            is_layer = "blocks" in path
        entries = (*spec, *[None] * (len(array.shape) - len(spec)))
        yield (
            path,
            ArrayLeaf(
                part=part,
                is_layer=is_layer,
                shape=tuple(array.shape),
                itemsize=array.dtype.itemsize,
                axes=tuple(_axes(entry) for entry in entries),
            ),
        )


def _axes(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry) if isinstance(entry, tuple) else ()


def _host_bytes(leaves: tuple[ArrayLeaf, ...]) -> dict[str, int]:
    """Returns what a process holds while it loads, saves and exports, by Levanter's own limits."""
    from levanter.compat.fsspec_safetensor import DEFAULT_STAGING_BUDGET_BYTES
    from levanter.tensorstore_serialization import TensorStoreWriteConfig

    write = TensorStoreWriteConfig()
    # Loading and exporting don't overlap with saving; the larger of the two counts.
    most = max(DEFAULT_STAGING_BUDGET_BYTES, write.max_staged_host_bytes + write.cache_pool_bytes)
    everything = sum(leaf.size * leaf.itemsize for leaf in leaves)
    return {
        # Assumed: interpreter, Levanter, and the compiler of a large program.
        "program": 6 * 10**9,
        "weights_or_checkpoints_in_flight": min(most, everything),
    }


def main() -> int:
    """Answers the request on stdin."""
    request = PreflightRequest(**json.load(sys.stdin))
    try:
        num_devices, _ = parse_accelerator(request.accelerator)
        use_virtual_devices(num_devices)
        report = make_report(plan_training(request))
        report["request"] = dataclasses.asdict(request)
    except TrainInputError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return 2
    sys.stdout.write(json.dumps({"report": report, "text": report_text(report)}) + "\n")
    return 0 if report["fits"] else 2


if __name__ == "__main__":
    sys.exit(main())
