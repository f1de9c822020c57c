"""One optimizer update: each trained token of a train step weighs the same, however the step is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import jax.random as jrandom
import optax
from haliax import Axis, NamedArray
from jax.sharding import Mesh, NamedSharding, reshard
from jax.sharding import PartitionSpec as P
from levanter.models.loss import next_token_loss_weight
from levanter.sharding import partition_spec_of
from levanter.trainer import TrainerConfig
from levanter.trainer_state import make_floating_point_trainable_filter
from levanter.utils.tree_utils import inference_mode

from neve_train.losses import LossSums

__all__ = ["StepResult", "build_train_step", "compile_train_step", "on_states", "placed"]

Losses = Callable[[Any, Any, jax.Array], LossSums]
"""(model in compute precision, example, key) -> sums of a batch or a part of one."""


class StepResult(NamedTuple):
    """What one train step tells besides the next state; scalars of the whole step."""

    loss: jax.Array
    """Mean over the trained tokens, nats, f32; 0 where none is trained."""
    gradient_norm: jax.Array
    """Global norm before clipping, f32."""
    trained_tokens: jax.Array
    """Positions whose prediction counts, int32."""
    real_tokens: jax.Array
    """Positions that aren't padding, int32."""
    facts: dict[str, jax.Array]
    """Counts that the model reports, summed."""


def build_train_step(
    config: TrainerConfig, losses: Losses, num_microbatches: int = 1
) -> Callable[[Any, Any], tuple[Any, StepResult]]:
    """Returns (state, batch) -> (next state, result), to be traced on the config's mesh.

    The divisor is the weight of the whole step, known before any part is computed, so that the parts
    add up to the gradient of one big batch, whatever they hold.

    Args:
        config: Precision, and how axes map to the mesh.
        losses: Sums of one part.
        num_microbatches: Parts of a step that run one after the other; divides each device's rows.
    """
    parameters, compute = config.parameter_axis_mapping, config.compute_axis_mapping

    def train_step(state: Any, batch: Any) -> tuple[Any, StepResult]:
        key, next_key = jrandom.split(state.training_key)
        trainable, frozen = eqx.partition(
            state.model,
            make_floating_point_trainable_filter(state.is_trainable),
            is_leaf=_is_named,
        )
        total = _total_weight(batch, compute)

        def part_loss(trainable: Any, part: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            model = eqx.combine(trainable, frozen, is_leaf=_is_named)
            with hax.axis_mapping(compute):
                sums = losses(config.mp.cast_to_compute(inference_mode(model, False)), part, key)
            return sums.loss_sum / total, sums.facts

        differentiate = eqx.filter_value_and_grad(part_loss, has_aux=True)
        if num_microbatches == 1:
            (loss, facts), gradients = differentiate(trainable, batch, key)
        else:
            (loss, facts), gradients = _accumulated(
                lambda part, key: differentiate(trainable, part, key),
                trainable,
                batch,
                jrandom.split(key, num_microbatches),
                parameters,
            )
        norm: Any = optax.global_norm(gradients)
        result = StepResult(loss, norm, *_count_tokens(batch, compute), facts)
        state, _ = state.take_step(gradients, loss=loss, key=next_key)
        return hax.shard(state, parameters), result

    return train_step


def compile_train_step(
    train_step: Callable[[Any, Any], tuple[Any, StepResult]], state: Any, batch: Any, mesh: Mesh
) -> jax.stages.Compiled:
    """Returns the compiled program of the step: (arrays of a state, batch) -> (the next ones, result).

    One program for the whole training: a state or batch of another form is an error, never a
    second compilation. The arrays that go in are used up.

    Args:
        train_step: From build_train_step.
        state: TrainerState, as `placed` returns it.
        batch: First batch.
        mesh: Devices of state and batch.
    """
    arrays, rest = eqx.partition(state, eqx.is_array)

    def step(arrays: Any, batch: Any) -> tuple[Any, StepResult]:
        state, result = train_step(eqx.combine(arrays, rest), batch)
        return jax.tree.map(_strong, eqx.filter(state, eqx.is_array)), result

    step.__name__ = step.__qualname__ = "train_step"  # the program's name in logs and profiles
    shardings = jax.tree.map(lambda leaf: leaf.sharding, arrays)
    return (
        jax.jit(step, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
        .lower(arrays, batch)
        .compile()
    )


def on_states(
    program: Callable[[Any, Any], tuple[Any, StepResult]], state: Any
) -> Callable[[Any, Any], tuple[Any, StepResult]]:
    """Returns the program as (state, batch) -> (next state, result); a state that goes in is used up.

    Args:
        program: Of arrays, as compile_train_step returns it.
        state: Any state of the training: what isn't an array stays as it is.
    """
    rest = eqx.filter(state, eqx.is_array, inverse=True)

    def run(state: Any, batch: Any) -> tuple[Any, StepResult]:
        arrays, result = program(eqx.filter(state, eqx.is_array), batch)
        return eqx.combine(arrays, rest), result

    return run


def placed(state: Any, shape: Any, mesh: Mesh) -> Any:
    """Returns a state whose arrays lie on the mesh as the model wants them, wherever they come from.

    Fresh weights, a Hugging Face folder and a checkpoint differ in where they put small arrays and
    counters, and each difference would be another program with another order of sums.

    Args:
        state: TrainerState.
        shape: The same tree from eqx.filter_eval_shape on the mesh.
        mesh: Where to put it.
    """

    def place(leaf: Any, like: Any) -> Any:
        if not eqx.is_array_like(leaf) or not hasattr(leaf, "dtype"):
            return leaf
        wanted = getattr(like, "sharding", None) or getattr(leaf, "sharding", None)
        spec = wanted.spec if isinstance(wanted, NamedSharding) else P()
        return jax.device_put(_strong(leaf), NamedSharding(mesh, spec))

    return jax.tree.map(place, state, shape)


def _accumulated(
    differentiate: Callable[[Any, jax.Array], Any],
    trainable: Any,
    batch: Any,
    keys: jax.Array,
    parameters: Any,
) -> Any:
    """Returns ((loss, facts), gradients) summed over the parts of a batch, one for each key."""
    leaves, structure = jax.tree.flatten(batch, is_leaf=_is_named)
    num_parts = len(keys)
    pieces = [_cut(leaf, num_parts) for leaf in leaves]

    def part(pieces: list[jax.Array]) -> Any:
        return structure.unflatten(
            [
                NamedArray(piece, (leaf.axes[0].resize(piece.shape[0]), *leaf.axes[1:]))
                for leaf, piece in zip(leaves, pieces, strict=True)
            ]
        )

    def add(sums: Any, piece: tuple[list[jax.Array], jax.Array]) -> tuple[Any, None]:
        sums = jax.tree.map(jnp.add, sums, differentiate(part(piece[0]), piece[1]))
        return hax.shard(sums, parameters), None

    (loss, facts), _ = eqx.filter_eval_shape(
        lambda pieces: differentiate(part([piece[0] for piece in pieces]), keys[0]), pieces
    )
    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), (loss, facts))
    sums, _ = jax.lax.scan(add, (zeros, jax.tree.map(jnp.zeros_like, trainable)), (pieces, keys))
    return sums


def _cut(leaf: Any, num_parts: int) -> jax.Array:
    """Returns [part, row, ...] of an array with rows first; each device's rows stay on it."""
    if not isinstance(leaf, NamedArray):
        raise TypeError(
            f"train step: a batch must hold named arrays only, got {type(leaf).__name__}."
        )
    rows, *rest = leaf.array.shape
    cut = jnp.moveaxis(leaf.array.reshape(rows // num_parts, num_parts, *rest), 1, 0)
    spec = partition_spec_of(leaf.array) or P()
    return reshard(cut, P(None, *spec)) if any(spec) else cut


def _total_weight(batch: Any, compute: Any) -> jax.Array:
    """Returns the sum of the weights of all positions, or 1 if it is 0."""
    Pos: Axis = batch.tokens.axes[-1]
    with hax.axis_mapping(compute):
        weight = next_token_loss_weight(Pos, batch.loss_weight.astype(jnp.float32))
        total = jnp.sum(weight.array)
    return jnp.where(total > 0, total, 1.0)


def _count_tokens(batch: Any, compute: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the numbers of trained tokens and of positions that aren't padding."""
    Pos: Axis = batch.tokens.axes[-1]
    with hax.axis_mapping(compute):
        weight = next_token_loss_weight(Pos, batch.loss_weight.astype(jnp.float32))
        segments = batch.attn_mask.segment_ids
        is_real = (segments[0] if isinstance(segments, tuple) else segments).array >= 0
        return jnp.sum(weight.array > 0, dtype=jnp.int32), jnp.sum(is_real, dtype=jnp.int32)


def _strong(leaf: Any) -> jax.Array:
    """Returns an array without weak type, which would make another program of the same numbers."""
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def _is_named(leaf: Any) -> bool:
    return isinstance(leaf, NamedArray)
