"""A program of the routing tests: one small Snowball on 8 virtual devices, and on one of them.

python routing_run.py prints one JSON line.
"""

import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
from haliax import Axis
from haliax.partitioning import set_mesh
from jax.sharding import AxisType, Mesh
from levanter.grug.attention import AttentionMask as GrugMask
from levanter.layers.attention import AttentionMask
from levanter.models.lm_model import LmExample
from levanter.models.snowball import (
    SnowballConfig,
    SnowballLMHeadModel,
    _activation_spec,
    _token_spec,
    long_attention_layer_mask,
)
from neve_chat.cache import TreeCacheWriter
from neve_chat.cache_reader import CacheReader
from neve_chat.row_plan import SEGMENT, RowPlan
from neve_train import devices
from neve_train.evaluation import HeldOutLoss
from neve_train.losses import LossSums, loss_sums
from neve_train.model import NeveSnowballConfig
from neve_train.planned_rows import PlannedRows

from tests.neve_train.results import tell

NUM_LAYERS, NUM_EXPERTS, EXPERTS_PER_TOKEN, EXPERT_SHARDS, BATCH = 3, 16, 4, 4, 8
Z_LOSS = 1e-3
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_dim": 64,
    "intermediate_dim": 32,
    "shared_expert_intermediate_dim": 32,
    "num_experts": NUM_EXPERTS,
    "num_experts_per_token": EXPERTS_PER_TOKEN,
    "num_layers": NUM_LAYERS,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_seq_len": 512,
    "sliding_window": 64,
    # 1 / sqrt(hidden_dim): every layer changes the hidden states by about their own size.
    "initializer_std": 0.125,
}
TIGHT = NeveSnowballConfig(**SHAPE, capacity_factor=1.25)
ROOMY = NeveSnowballConfig(**SHAPE, capacity_factor=float(EXPERT_SHARDS), uses_segments=True)
"""Takes every assignment: nothing is dropped."""
APART = dataclasses.replace(ROOMY, uses_segments=False)


MESHES = {
    "experts": {"data": 1, "expert": 4, "context": 2, "model": 1},
    "vocabulary": {"data": 1, "expert": 2, "context": 2, "model": 2},
    "one device": {"data": 1, "expert": 1, "context": 1, "model": 1},
}


@contextmanager
def on(name: str) -> Iterator[None]:
    """Sets a mesh of MESHES and the axes that compute uses on it."""
    config = devices.base_trainer_config(MESHES[name])
    if name == "one device":
        axes = ("replica_dcn", "replica", *MESHES[name])
        first = np.array(jax.devices()[:1]).reshape((1,) * len(axes))
        mesh = Mesh(first, axes, axis_types=(AxisType.Explicit,) * first.ndim)
    else:
        mesh = config.device_mesh
    with set_mesh(mesh), hax.axis_mapping(config.compute_axis_mapping):
        yield


@eqx.filter_jit
def build(*configs: NeveSnowballConfig) -> Any:
    """Returns a model of each config, all with the same weights."""
    key = jrandom.PRNGKey(0)
    return [config.build(Axis("vocab", config.vocab_size), key=key) for config in configs]


def batch(rows: Sequence[Sequence[Any]], size: int, padding: int = 0) -> Any:
    """Returns the LmExample of rows that hold conversations, each an array of ids."""
    tokens = np.full((len(rows), size), padding, np.int32)
    segments = np.full((len(rows), size), -1, np.int32)
    weights = np.zeros((len(rows), size), np.float32)
    for row, conversations in enumerate(rows):
        start = 0
        for number, ids in enumerate(conversations):
            stop = start + len(ids)
            tokens[row, start:stop] = ids
            segments[row, start:stop] = number
            weights[row, start : stop - 1] = 1
            start = stop
    axes = (Axis("batch", len(rows)), Axis("position", size))
    named = [hax.shard(hax.named(jnp.asarray(part), axes)) for part in (tokens, weights, segments)]
    return LmExample(
        tokens=named[0],
        loss_weight=named[1],
        attn_mask=AttentionMask.causal().with_segment_ids(named[2]),
    )


@eqx.filter_jit
def losses(model: Any, example: Any) -> tuple[jax.Array, LossSums]:
    """Returns each position's weighted loss as Levanter computes it, and our sums."""
    positions = model.compute_next_token_loss(
        example, reduction=None, reduction_axis=(), logsumexp_weight=Z_LOSS
    )
    return positions.array, loss_sums(model, example, z_loss=Z_LOSS)


@eqx.filter_jit
def train_sums(model: Any, example: Any) -> tuple[LossSums, jax.Array]:
    """Returns the sums as a train step sees them, and whether every gradient is finite."""

    def loss(model: Any) -> tuple[jax.Array, LossSums]:
        sums = loss_sums(model, example)
        return sums.loss_sum / sums.weight_sum, sums

    (_, sums), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model)
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)]
    return sums, jnp.stack(finite).all()


@eqx.filter_jit
def choices(model: Any, example: Any) -> jax.Array:
    """Returns the experts that each layer's router chose, int32[layer, token, choice].

    One block after the other, without the scan and the counting that are tested.
    """
    transformer, seen = model.transformer, []
    real = example.attn_mask.segment_ids[0].array >= 0
    valid = jnp.reshape(real, (real.size,), out_sharding=_token_spec())
    hidden = transformer.token_embed.at[example.tokens.array].get(out_sharding=_activation_spec())
    hidden = transformer.embed_gated_norm(transformer.embed_norm(hidden))
    short = GrugMask.causal(sliding_window=model.config.sliding_window)
    long_layers = long_attention_layer_mask(NUM_LAYERS)
    for block, is_long in zip(transformer.blocks, long_layers, strict=True):

        def spy(x: Any, selected: Any, weights: Any, *, block: Any = block, **options: Any) -> Any:
            seen.append(selected)
            return block.mlp.expert_mlp(x, selected, weights, token_valid=valid, **options)

        mlp = dataclasses.replace(block.mlp, expert_mlp=spy)
        hidden = dataclasses.replace(block, mlp=mlp)(hidden, short, GrugMask.causal(), is_long)
    return jnp.stack(seen)


def count_dropped(chosen: Any, real: Any, capacity_factor: float) -> int:
    """Returns how many assignments exceed a shard's share, from the router's choices.

    Devices that share a half of the positions (context 2) route among themselves.
    """
    dropped = 0
    chosen = chosen.reshape(NUM_LAYERS, BATCH, 2, -1, EXPERTS_PER_TOKEN)
    real = real.reshape(BATCH, 2, -1)
    for layer in range(NUM_LAYERS):
        for half in range(2):
            shards = chosen[layer, :, half][real[:, half]] // (NUM_EXPERTS // EXPERT_SHARDS)
            even_share = shards.size / EXPERT_SHARDS
            for shard in range(EXPERT_SHARDS):
                dropped += max(
                    0, (shards == shard).sum() - int(np.ceil(capacity_factor * even_share))
                )
    return int(dropped)


def facts(sums: LossSums) -> dict[str, int]:
    """Returns the counts as numbers."""
    return {name: int(value) for name, value in sums.facts.items()}


def conversations(lengths: Any) -> list[list[Any]]:
    """Returns rows of conversations of random tokens."""
    rng = np.random.default_rng(0)
    return [[rng.integers(1, 512, length) for length in row] for row in lengths]


def apart_and_together() -> dict[str, Any]:
    """Packed rows against separate ones, 8 devices against one, sums against Levanter's losses."""
    size = 128
    rng = np.random.default_rng(1)
    rows = conversations(rng.integers(20, 43, (BATCH, 3)))
    num_tokens = sum(len(ids) for row in rows for ids in row)
    singles = [[ids] for row in rows for ids in row]
    results: dict[str, Any] = {}
    weights, separate, unmasked = None, [], ()
    for name in MESHES:
        with on(name):
            roomy, apart = build(ROOMY, APART)
            if weights is not None:  # drawn on another mesh, they differ in the last place
                roomy = jax.tree.map(
                    lambda leaf, value: jax.device_put(value, leaf.sharding), roomy, weights
                )
            packed, sums = losses(roomy, batch(rows, size))
            results[name] = (np.asarray(packed), sums)
            if weights is None:
                weights = jax.tree.map(np.asarray, roomy)
                tokens = batch(rows, size).tokens
                unmasked = eqx.filter_eval_shape(roomy.activations, tokens).array.shape
                separate = [
                    losses(apart, batch(singles[start : start + BATCH], size))
                    for start in range(0, len(singles), BATCH)
                ]
    packed, sums = results["experts"]
    split, split_sums = results["vocabulary"]
    alone, alone_sums = results["one device"]
    rows_apart = np.concatenate([np.asarray(part[0]) for part in separate])
    differences = []
    for row, parts in enumerate(rows):
        start = 0
        for number, ids in enumerate(parts):
            other = rows_apart[3 * row + number]
            differences.append(
                np.abs(packed[row, start : start + len(ids)] - other[: len(ids)]).max()
            )
            start += len(ids)
    return {
        "spread": float(packed[packed > 0].std()),
        "packed_against_separate": float(max(differences)),
        "one_device_against_8": float(np.abs(packed - alone).max()),
        "one_device_against_model_axis": float(np.abs(split - alone).max()),
        "assignments": num_tokens * EXPERTS_PER_TOKEN * NUM_LAYERS,
        "facts": [facts(sums), facts(split_sums), facts(alone_sums)],
        "separate_facts": [facts(part[1]) for part in separate],
        "weight_sum": [float(sums.weight_sum), num_tokens - 3 * BATCH],
        "positions_sum": float(packed.astype(np.float64).sum()),
        "unmasked": unmasked,
        "separate_sum": sum(float(part[1].loss_sum) for part in separate),
        "sum": float(sums.loss_sum),
    }


def padding_and_drops() -> dict[str, Any]:
    """Nine tenths of padding, then a router that prefers the experts of one shard."""
    size = 512
    few = conversations([[51]] * BATCH)
    many = conversations([[length] for length in (60, 120, 200, 256, 300, 400, 480, 512)])
    with on("experts"):
        (model,) = build(TIGHT)
        biases = [
            jnp.where(jnp.arange(NUM_EXPERTS) < NUM_EXPERTS // EXPERT_SHARDS, 1.0, 0.0)
            for _ in range(NUM_LAYERS)
        ]
        biased = eqx.tree_at(
            lambda tree: [block.mlp.router_bias for block in tree.transformer.blocks], model, biases
        )
        padded, padded_finite = train_sums(model, batch(few, size))
        # The same tokens, all of them real: what the experts see without the padding marked.
        full = [[np.concatenate([row[0], np.zeros(size - 51, np.int32)])] for row in few]
        unmarked, _ = train_sums(model, batch(full, size))
        example = batch(many, size)
        dropping, dropping_finite = train_sums(biased, example)
        other, _ = train_sums(biased, batch(many, size, padding=77))
        real = np.asarray(example.attn_mask.segment_ids[0].array) >= 0
        chosen = np.asarray(choices(biased, example))
    return {
        "padded": facts(padded),
        "padded_assignments": 51 * BATCH * EXPERTS_PER_TOKEN * NUM_LAYERS,
        "unmarked": facts(unmarked),
        "dropping": facts(dropping),
        "dropping_assignments": int(real.sum()) * EXPERTS_PER_TOKEN * NUM_LAYERS,
        "counted": count_dropped(chosen, real, TIGHT.capacity_factor),
        "types": sorted({str(count.dtype) for count in dropping.facts.values()}),
        "is_finite": [bool(padded_finite), bool(dropping_finite)],
        "loss_sums": [float(dropping.loss_sum), float(other.loss_sum)],
        "other_padding": facts(other),
    }


def held_out() -> dict[str, Any]:
    """Held-out loss of two sets that end within a batch, against sums of whole batches by hand.

    Of the size that padding_and_drops has compiled for.
    """
    size, lengths = 512, (400, 180, 512, 240, 360)
    rng = np.random.default_rng(2)
    rows = [[[rng.integers(1, 512, length)] for length in lengths] for _ in range(2)]
    config = devices.base_trainer_config(
        MESHES["experts"],
        train_batch_size=BATCH,
        per_device_eval_parallelism=BATCH // EXPERT_SHARDS,
        mp=devices.policy("f32"),
    )
    with tempfile.TemporaryDirectory() as folder, on("experts"):
        (model,) = build(TIGHT)
        Pos = model.Pos.resize(size)
        sets = []
        for name, mine in zip("ab", rows, strict=True):
            path = f"{folder}/{name}"
            with TreeCacheWriter(
                path, scratch=Path(folder) / "scratch", preprocessor_metadata={}
            ) as writer:
                for (ids,) in mine:
                    writer.append(ids.astype(np.int32), np.ones(len(ids), np.int32))
            segments = np.zeros(len(mine), SEGMENT)
            segments["row"], segments["length"] = np.arange(len(mine)), lengths
            plan = RowPlan(segments, np.arange(1, len(mine) + 1))
            sets.append((PlannedRows(plan, [CacheReader(path)], Pos), [name]))
        found = {str(limit): HeldOutLoss(config, sets, limit)(model) for limit in (None, 3)}
        by_hand = {}
        for limit in (None, 3):
            used = [row for mine in rows for row in mine[:limit]]
            used += [[] for _ in range(-len(used) % BATCH)]
            sums = [
                train_sums(model, batch(used[start : start + BATCH], size))[0]
                for start in range(0, len(used), BATCH)
            ]
            total = sum(float(part.loss_sum) for part in sums)
            by_hand[str(limit)] = total / sum(float(part.weight_sum) for part in sums)
    return {"found": found, "by_hand": by_hand}


def trees() -> dict[str, Any]:
    """Names of leaves in checkpoints and in Hugging Face folders, ours against Levanter's."""

    def names(model: Any) -> list[list[str]]:
        leaves = jax.tree_util.tree_leaves_with_path(model)
        tensors = eqx.filter_eval_shape(lambda model: model.to_state_dict(), model)
        return [
            [jax.tree_util.keystr(path) for path, _ in leaves],
            sorted(f"{name} {tensor.shape}" for name, tensor in tensors.items()),
        ]

    with on("experts"):
        Vocab, key = Axis("vocab", SHAPE["vocab_size"]), jrandom.PRNGKey(0)
        parent = eqx.filter_eval_shape(
            SnowballLMHeadModel.init, Vocab, SnowballConfig(**SHAPE), key=key
        )
        ours = eqx.filter_eval_shape(ROOMY.build, Vocab, key=key)
        return {"is_same": names(parent) == names(ours), "num_leaves": len(names(ours)[0])}


if __name__ == "__main__":
    started = time.monotonic()
    result: dict[str, Any] = {}
    for part in (trees, apart_and_together, padding_and_drops, held_out):
        result |= {part.__name__: part()}
        sys.stderr.write(f"{part.__name__}: {time.monotonic() - started:.1f} s\n")
    tell(result)
