"""The Hugging Face tensors of a native checkpoint, each read for itself.

Levanter's own mapping to a state dict is traced once. To read one tensor, its trace is followed back to
the arrays of the checkpoint, and only the rows that it needs are read: no model is ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import haliax.state_dict
import jax
import jax.extend.core
import numpy as np
import tensorstore
from haliax.jax_utils import is_jax_array_like
from levanter.checkpoint_manifest import read_manifest
from levanter.tensorstore_serialization import build_kvstore_spec

from neve_train.checkpoints import array_paths, check_arrays
from neve_train.errors import CheckpointError
from neve_train.hf_folder import TensorShape

__all__ = ["CheckpointTensors"]

Rows = tuple[int, int] | None
"""Half-open range along the first axis; None: all."""

_SUBTREE = "model"  # of Levanter's TrainerState
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}
_MOVES_NOTHING = ("copy", "copy_p", "sharding_constraint", "reshard", "mesh_cast")


class _Lazy(NamedTuple):
    """An array of the trace that is only computed where it is asked for."""

    shape: tuple[int, ...]
    read: Callable[[Rows], np.ndarray]


class CheckpointTensors(Mapping[str, Callable[[], np.ndarray]]):
    """Name -> function that reads the tensor, in the order of the names.

    Every call reads anew. The array has the checkpoint's type, and may be a view in another order.
    """

    def __init__(self, checkpoint: str, model: Any) -> None:
        """
        Args:
            checkpoint: A step-N folder, local or remote.
            model: The model with jax.ShapeDtypeStruct for its arrays.

        Raises:
            CheckpointError: The checkpoint lacks an array of the model, has it in another shape, or has
                more of them.
        """
        arrays = eqx.filter(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
        arrays = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
        check_arrays(checkpoint, arrays, _SUBTREE)
        paths = list(array_paths(arrays, _SUBTREE))
        names: list[str] = []

        def state_dict(model: Any) -> list[Any]:
            tensors = _state_dict(model)
            names.extend(tensors)
            return list(tensors.values())

        traced = jax.make_jaxpr(state_dict)(arrays)
        stores = _open(checkpoint, paths)
        stored = [
            _stored(f"{checkpoint} {path}", store)
            for path, store in zip(paths, stores, strict=True)
        ]
        values = _evaluate(traced.jaxpr, traced.consts, stored)
        self._tensors = dict(sorted(zip(names, values, strict=True)))
        types: dict[str, Any] = dict(zip(names, traced.out_avals, strict=True))
        self.shapes = {
            name: TensorShape(tuple(types[name].shape), np.dtype(types[name].dtype))
            for name in self._tensors
        }
        """Name -> shape and type of every tensor."""

    def __getitem__(self, name: str) -> Callable[[], np.ndarray]:
        """Returns the function that reads a tensor."""
        tensor = self._tensors[name]
        return lambda: tensor.read(None)

    def __iter__(self) -> Any:
        """Yields the names, sorted."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Returns the number of tensors."""
        return len(self._tensors)


def _state_dict(model: Any) -> dict[str, Any]:
    """Returns what Levanter exports of a model, as jax arrays."""
    model = eqx.filter(model, is_jax_array_like)
    flat = haliax.state_dict.flatten_modules_for_export(model)
    return haliax.state_dict.to_state_dict(flat)


def _open(checkpoint: str, paths: Sequence[str]) -> list[tensorstore.TensorStore]:
    """Returns the arrays at these paths, unread."""
    manifest = read_manifest(checkpoint)
    assert manifest is not None  # check_arrays has read it
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
    base = {"driver": manifest.kvstore_driver, "base": build_kvstore_spec(checkpoint)}
    pending = [
        tensorstore.open(
            {"driver": manifest.array_driver, "kvstore": {**base, "path": path}},
            open=True,
            read=True,
            context=context,
        )
        for path in paths
    ]
    return [future.result() for future in pending]


def _stored(where: str, store: tensorstore.TensorStore) -> _Lazy:
    def read(rows: Rows) -> np.ndarray:
        part = store if rows is None else store[rows[0] : rows[1]]
        try:
            return part.read(order="C").result()
        except (ValueError, OSError) as error:  # what tensorstore raises for files that are torn
            reason = str(error).strip().partition("\n")[0][:300]
            raise CheckpointError(
                f"checkpoint {where}: every array must be readable, got {reason}. Pass an older "
                "step-N, or train on from one."
            ) from error

    return _Lazy(tuple(store.shape), read)


def _evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[_Lazy]) -> list[_Lazy]:
    """Returns the results of a trace, none of them computed yet."""
    known = dict(zip(jaxpr.constvars, map(_constant, consts), strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def value(atom: Any) -> _Lazy:
        return _constant(atom.val) if isinstance(atom, jax.extend.core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands, name = [value(atom) for atom in equation.invars], equation.primitive.name
        if name in _CALLS:
            inner = equation.params[_CALLS[name]]
            results = _evaluate(inner.jaxpr, inner.consts, operands)
        elif name in _MOVES_NOTHING:
            results = operands[:1]
        elif name in _MOVES:
            results = [_MOVES[name](operands[0], equation)]
        else:
            results = _computed(equation, operands)
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _constant(number: Any) -> _Lazy:
    array = np.asarray(number)
    return _Lazy(array.shape, lambda rows: _cut(array, rows))


def _cut(array: np.ndarray, rows: Rows) -> np.ndarray:
    return array if rows is None else array[rows[0] : rows[1]]


def _computed(equation: Any, operands: Sequence[_Lazy]) -> list[_Lazy]:
    """Any other operation: jax does it on whole operands, anew for each result that is read."""

    def read(index: int, rows: Rows) -> np.ndarray:
        values = [operand.read(None) for operand in operands]
        results = equation.primitive.bind(*values, **equation.params)
        results = results if equation.primitive.multiple_results else [results]
        return _cut(np.asarray(results[index]), rows)

    return [
        _Lazy(tuple(out.aval.shape), lambda rows, index=index: read(index, rows))
        for index, out in enumerate(equation.outvars)
    ]


def _slice(x: _Lazy, equation: Any) -> _Lazy:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    is_rows = (*starts[1:], *limits[1:]) == (0,) * (len(starts) - 1) + x.shape[1:]

    def read(rows: Rows) -> np.ndarray:
        if is_rows and strides[0] == 1:
            low, high = rows or (0, limits[0] - starts[0])
            return x.read((starts[0] + low, starts[0] + high))
        return _cut(x.read(None)[tuple(map(slice, starts, limits, strides))], rows)

    return _result(equation, read)


def _squeeze(x: _Lazy, equation: Any) -> _Lazy:
    axes = equation.params["dimensions"]

    def read(rows: Rows) -> np.ndarray:
        if 0 in axes:
            return _cut(x.read(None).squeeze(axes), rows)
        return x.read(rows).squeeze(axes)

    return _result(equation, read)


def _reshape(x: _Lazy, equation: Any) -> _Lazy:
    shape = tuple(equation.outvars[0].aval.shape)
    keeps_rows = bool(shape) and x.shape[:1] == shape[:1]

    def read(rows: Rows) -> np.ndarray:
        if keeps_rows and rows is not None:
            return x.read(rows).reshape(rows[1] - rows[0], *shape[1:])
        return _cut(x.read(None).reshape(shape), rows)

    return _result(equation, read)


def _transpose(x: _Lazy, equation: Any) -> _Lazy:
    order = equation.params["permutation"]

    def read(rows: Rows) -> np.ndarray:
        if order[0] == 0:
            return x.read(rows).transpose(order)
        return _cut(x.read(None).transpose(order), rows)

    return _result(equation, read)


def _convert(x: _Lazy, equation: Any) -> _Lazy:
    dtype = np.dtype(equation.params["new_dtype"])
    return _result(equation, lambda rows: x.read(rows).astype(dtype, copy=False))


def _result(equation: Any, read: Callable[[Rows], np.ndarray]) -> _Lazy:
    return _Lazy(tuple(equation.outvars[0].aval.shape), read)


_MOVES: dict[str, Callable[[_Lazy, Any], _Lazy]] = {
    "slice": _slice,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "transpose": _transpose,
    "convert_element_type": _convert,
}
