"""A program of the preflight tests: XLA's own memory analysis of compiled train steps, beside the estimate.

python preflight_run.py NUM_DEVICES prints one JSON line; each case is a small Snowball on a mesh of the
devices. Attention is Levanter's blockwise XLA implementation, which holds no score matrix either.
"""

import dataclasses
import sys
from typing import Any

from tests.neve_train.results import tell

# Few experts per device: XLA for a CPU spreads each token over all of them, which no accelerator does.
SMALL = {
    "vocab_size": 1024, "hidden_dim": 512, "intermediate_dim": 256,
    "shared_expert_intermediate_dim": 512, "num_experts": 2, "num_experts_per_token": 1,
    "num_layers": 6, "num_heads": 4, "num_kv_heads": 2, "head_dim": 128, "max_seq_len": 8192,
    "sliding_window": 256,
}  # fmt: skip

CASES: dict[int, dict[str, dict[str, Any]]] = {
    1: {
        "long rows": {"model": {}, "seq_len": 4096, "rows": 2},
        "large vocabulary": {
            "model": {"vocab_size": 65_536, "num_layers": 2}, "seq_len": 2048, "rows": 2,
        },
    },
    8: {
        "context 2 x expert 4": {
            "model": {"num_experts": 8, "num_experts_per_token": 2}, "seq_len": 4096, "rows": 8,
            "mesh": {"context": 2, "expert": 4},
        },
        "data 2 x expert 2 x context 2, microbatches": {
            "model": {"num_experts": 4, "num_experts_per_token": 2}, "seq_len": 4096, "rows": 16,
            "mesh": {"data": 2, "expert": 2, "context": 2}, "per_device": 2,
        },
    },
}  # fmt: skip

BLOCK = 1024  # edge of the blocks of scores in Levanter's XLA implementation of attention
LOSS_COLUMNS = 8192  # columns of logits in Levanter's XLA implementation of the loss


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Compiles the train step of a case; returns the estimate and what XLA says, bytes per device."""
    import equinox as eqx
    import haliax as hax
    import jax
    import jax.numpy as jnp
    from haliax import Axis
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P
    from levanter.layers.attention import AttentionMask
    from levanter.models.lm_model import LmExample
    from neve_train import devices, preflight
    from neve_train.accelerators import parse_accelerator
    from neve_train.losses import loss_sums
    from neve_train.mesh import check_mesh
    from neve_train.model import NeveSnowballConfig
    from neve_train.preflight_memory import Workload, estimate
    from neve_train.train_step import build_train_step

    config = NeveSnowballConfig(
        **(SMALL | case["model"]), attention_implementation="xla_flash", uses_segments=True
    )
    seq_len, rows = case["seq_len"], case["rows"]
    sizes = check_mesh(jax.device_count(), case.get("mesh", {}), rows, seq_len)
    request = preflight.PreflightRequest(
        name="case", model="", accelerator=f"{jax.device_count()}xcpu", mesh=sizes,
        seq_len=seq_len, batch_size=rows, per_device_batch_size=case.get("per_device"),
        precision="p=f32,c=f32",
    )  # fmt: skip
    policy = devices.policy(request.precision)
    state, trainer = preflight.trace_state(config, request, sizes, policy)
    work = Workload(
        sizes=sizes, seq_len=seq_len, batch_size=rows,
        per_device_batch_size=request.per_device_batch_size, compute_itemsize=4,
        score_block=BLOCK, loss_tile_vocab=LOSS_COLUMNS,
    )  # fmt: skip
    leaves = preflight.array_leaves(state, trainer)
    memory = estimate(leaves, preflight.model_shape(config), work)
    with devices.on_mesh(trainer) as mesh:
        axes = (Axis("batch", rows), config.max_Pos.resize(seq_len))
        spec = P(("replica_dcn", "data", "expert"), "context" if sizes["context"] > 1 else None)

        def named(dtype: Any) -> Any:
            array: Any = jax.ShapeDtypeStruct(
                (rows, seq_len), dtype, sharding=NamedSharding(mesh, spec)
            )
            return hax.NamedArray(array, axes)

        batch = LmExample(
            tokens=named(jnp.int32),
            loss_weight=named(jnp.float32),
            attn_mask=AttentionMask.causal().with_segment_ids(named(jnp.int32)),
        )
        step = build_train_step(
            trainer, lambda model, part, key: loss_sums(model, part), work.num_microbatches
        )
        arrays, rest = eqx.partition(state, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
        shardings = jax.tree.map(
            lambda leaf: NamedSharding(mesh, jax.typeof(leaf).sharding.spec), arrays
        )
        arrays = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            arrays,
            shardings,
        )

        def run(arrays: Any, batch: Any) -> Any:
            state, result = step(eqx.combine(arrays, rest), batch)
            return eqx.filter(state, eqx.is_array), result

        program = (
            jax.jit(run, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
            .lower(arrays, batch)
            .compile()
        )
    analysis: Any = program.memory_analysis()
    batch_bytes = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch) if hasattr(leaf, "size")
    )
    assert parse_accelerator(request.accelerator)[0] == jax.device_count()
    return {
        "state": memory.state,
        "batch": batch_bytes,
        "beyond_state": memory.peak - memory.state,
        "parts": dataclasses.asdict(memory),
        "moments": memory.moments,
        "xla_arguments": analysis.argument_size_in_bytes,
        "xla_temporaries": analysis.temp_size_in_bytes,
    }


def main() -> None:
    """Measures the cases of a number of devices."""
    num_devices = int(sys.argv[1])
    from neve_train.preflight import use_virtual_devices

    use_virtual_devices(num_devices)
    from neve_train import devices

    devices.initialize()
    results = {name: measure(case) for name, case in CASES[num_devices].items()}
    tell(results)


if __name__ == "__main__":
    main()
