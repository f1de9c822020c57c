"""Canonical, type-tagged JSON trees of config values.

One encoder serves identity and step.json (`Encoder` with `identity=False`). JSON null,
true, integers and strings stand for themselves; everything else is an object with one key that
starts with "$", so that 1, 1.0, True and "1" differ, and so do dict key types and class names.
"""

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import sys
import types
import uuid
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from neve.errors import InputError
from neve.naming import find, qualified_name
from neve.step import ExecutorStep, OutputRef, ThisOutput, Unhashed

MAX_DEPTH = 100
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def canonical(tree: Any) -> str:
    """Return the one JSON text of a tree."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class Encoder:
    """Encodes one config, collecting its references and unhashed values on the way.

    In identity mode a reference is `{"$step": {"fingerprint": None, "part": ...}}`, and its inner
    object is listed in `refs` for the caller to fill in; unhashed values leave only a mark.
    """

    def __init__(
        self,
        *,
        identity: bool,
        forbidden: tuple[str, ...] = (),
        locate: Callable[[ExecutorStep], dict[str, Any]] | None = None,
    ) -> None:
        """Args: forbidden are prefixes no hashed text may start with; locate places a step."""
        self.identity = identity
        self.forbidden = forbidden
        self.locate = locate
        self.refs: list[tuple[str, ExecutorStep, dict[str, Any]]] = []
        self.unhashed: dict[str, Any] = {}
        self._in_unhashed = False

    def encode(self, value: Any, where: str, depth: int = 0) -> Any:
        """Return the tree of a value; `where` is its field path.

        Raises:
            InputError: A value has no canonical form; names the field path.
        """
        kind = type(value)
        if kind is str:
            if self.forbidden:
                self._check_text(value, where)
            return value
        if value is None or kind is bool or kind is int:
            return value
        if kind is float:
            return {"$float": repr(value)}
        if depth > MAX_DEPTH:
            raise InputError(
                f"{where}: must nest at most {MAX_DEPTH} deep, got more. Remove the cycle."
            )
        if kind is list or kind is tuple:
            items = [self.encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
            return {"$list" if kind is list else "$tuple": items}
        if kind is dict:
            return {"$dict": self._pairs(value, where, depth)}
        if isinstance(value, (ExecutorStep, OutputRef, ThisOutput, Unhashed)):
            return self._reference(value, where, depth)
        if isinstance(value, enum.Enum):
            return {"$enum": [self._class_name(type(value), where), value.name]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, where, depth)
        return self._other(value, where, depth)

    def _check_text(self, text: str, where: str) -> None:
        if self._in_unhashed:
            return
        for prefix in self.forbidden:
            if text == prefix or text.startswith(prefix + "/"):
                raise InputError(
                    f"{where}: must not hold a path under the prefix {prefix}, got {text!r}. "
                    "Refer to the step that writes it: step / 'part'."
                )

    def _pairs(self, value: dict[Any, Any], where: str, depth: int) -> list[Any]:
        pairs = [
            [
                self.encode(key, f"{where} key {key!r:.60}", depth + 1),
                self.encode(item, f"{where}[{key!r:.60}]", depth + 1),
            ]
            for key, item in value.items()
        ]
        return sorted(pairs, key=lambda pair: canonical(pair[0]))

    def _reference(self, value: Any, where: str, depth: int) -> Any:
        if isinstance(value, ThisOutput):
            return {"$this": value.part}
        if isinstance(value, Unhashed):
            outer, self._in_unhashed = self._in_unhashed, True
            tree = self.encode(value.value, where, depth + 1)
            self._in_unhashed = outer
            self.unhashed[where] = tree
            return {"$unhashed": None if self.identity else tree}
        ref = OutputRef(value) if isinstance(value, ExecutorStep) else value
        node: dict[str, Any] = {"fingerprint": None, "part": ref.part}
        if self.locate is not None:
            node |= self.locate(ref.step)
        self.refs.append((where, ref.step, node))
        return {"$step": node}

    def _class_name(self, cls: type, where: str) -> str:
        own = cls.__dict__.get("__fingerprint_id__") if self.identity else None
        return f"id:{own}" if own else qualified_name(cls, where)

    def _dataclass(self, value: Any, where: str, depth: int) -> Any:
        fields = {
            field.name: self.encode(getattr(value, field.name), f"{where}.{field.name}", depth + 1)
            for field in dataclasses.fields(value)
        }
        return {"$class": [self._class_name(type(value), where), fields]}

    def _other(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if kind in (set, frozenset):
            items = [self.encode(item, f"{where}{{}}", depth + 1) for item in value]
            tag = "$set" if kind is set else "$frozenset"
            return {tag: sorted(items, key=canonical)}
        if isinstance(value, PurePath):
            text = value.as_posix()
            self._check_text(text, where)
            return {"$path": text}
        if kind is datetime.timedelta:
            return {"$timedelta": [value.days, value.seconds, value.microseconds]}
        if kind in (datetime.datetime, datetime.date, datetime.time):
            return {f"${kind.__name__}": value.isoformat()}
        if kind in (decimal.Decimal, uuid.UUID):
            return {f"${kind.__name__.lower()}": str(value)}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            items = [self.encode(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
            return {"$namedtuple": [self._class_name(kind, where), items]}
        if isinstance(value, type):
            return {"$type": self._class_name(value, where)}
        if isinstance(value, _FUNCTIONS):
            return {"$function": qualified_name(value, where)}
        array = _encode_array(value, where)
        if array is not None:
            return array
        raise _refusal(value, where)


def _refusal(value: Any, where: str) -> InputError:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, functools.partial):
        advice = "Pass the arguments as fields of their own."
    else:
        advice = "Use plain values, dataclasses, or refer to a step; live objects have no identity."
    return InputError(f"{where}: must have a canonical form, got a {name} object. {advice}")


def _encode_array(value: Any, where: str) -> Any:
    """Return the form of a numpy array, scalar or dtype; None for anything else."""
    numpy = sys.modules.get("numpy")  # numpy values exist only where numpy is loaded
    if numpy is None:
        return None
    if isinstance(value, numpy.dtype):
        return {"$dtype": _dtype_name(value, where)}
    if type(value) is numpy.ndarray or isinstance(value, numpy.generic):
        dtype = _dtype_name(value.dtype, where)
        data = base64.b64encode(numpy.ascontiguousarray(value).tobytes()).decode()
        scalar = isinstance(value, numpy.generic)
        return {"$scalar" if scalar else "$array": [dtype, list(value.shape), data]}
    return None


def _dtype_name(dtype: Any, where: str) -> str:
    if dtype.hasobject or dtype.fields is not None:
        raise InputError(f"{where}: must be a plain dtype, got {dtype}. Use plain numbers.")
    # dtype.str of ml_dtypes (bfloat16) is only "<V2"; its name tells more.
    return dtype.str if dtype.kind != "V" else dtype.name


class Decoder:
    """Turns a tree of step.json back into values, with references as absolute paths."""

    def __init__(self, resolve: Callable[[dict[str, Any]], str], this: Callable[[str], str]):
        """Args: resolve gives the path of a $step node, this that of a $this part."""
        self.resolve = resolve
        self._this = this

    def decode(self, tree: Any) -> Any:
        """Return the value of a tree."""
        if not isinstance(tree, dict):
            return tree
        ((tag, inner),) = tree.items()
        handler = getattr(self, f"_{tag[1:]}", None)
        if handler is not None:
            return handler(inner)
        if tag in _SIMPLE:
            return _SIMPLE[tag](inner)
        raise InputError(f"encoded config: must use known tags, got {tag!r}. Update neve.")

    def _list(self, inner: list[Any]) -> Any:
        return [self.decode(item) for item in inner]

    def _tuple(self, inner: list[Any]) -> Any:
        return tuple(self.decode(item) for item in inner)

    def _set(self, inner: list[Any]) -> Any:
        return {self.decode(item) for item in inner}

    def _frozenset(self, inner: list[Any]) -> Any:
        return frozenset(self.decode(item) for item in inner)

    def _dict(self, inner: list[Any]) -> Any:
        return {self.decode(key): self.decode(item) for key, item in inner}

    def _step(self, inner: dict[str, Any]) -> str:
        return self.resolve(inner)

    def _unhashed(self, inner: Any) -> Any:
        return self.decode(inner)

    def _enum(self, inner: list[str]) -> Any:
        return find(inner[0])[inner[1]]

    def _namedtuple(self, inner: list[Any]) -> Any:
        return find(inner[0])(*self._list(inner[1]))

    def _class(self, inner: list[Any]) -> Any:
        cls = find(inner[0])
        values = {name: self.decode(tree) for name, tree in inner[1].items()}
        fields = {field.name: field.init for field in dataclasses.fields(cls)}
        result = cls(**{name: v for name, v in values.items() if fields.get(name, True)})
        for name, value in values.items():
            if not fields.get(name, True):
                object.__setattr__(result, name, value)
        return result


def _decode_array(inner: list[Any]) -> Any:
    import numpy  # heavy optional dependency: only configs with arrays need it

    dtype, shape, data = inner
    flat = numpy.frombuffer(base64.b64decode(data), dtype=_decode_dtype(dtype))
    return flat.reshape(shape).copy()


def _decode_dtype(name: str) -> Any:
    import numpy  # heavy optional dependency: only configs with dtypes need it

    try:
        return numpy.dtype(name)
    except TypeError:
        import ml_dtypes  # heavy optional dependency: knows bfloat16 and its kin

        return numpy.dtype(getattr(ml_dtypes, name))


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$path": Path,
    "$timedelta": lambda parts: datetime.timedelta(*parts),
    "$datetime": datetime.datetime.fromisoformat,
    "$date": datetime.date.fromisoformat,
    "$time": datetime.time.fromisoformat,
    "$decimal": decimal.Decimal,
    "$uuid": uuid.UUID,
    "$type": find,
    "$function": find,
    "$dtype": _decode_dtype,
    "$array": _decode_array,
    "$scalar": lambda inner: _decode_array(inner)[()],
}


def readable(tree: Any) -> Any:
    """Return a tree for people: plain JSON where the tags are left out."""
    if not isinstance(tree, dict):
        return tree
    ((tag, inner),) = tree.items()
    if tag == "$class":
        return {name: readable(item) for name, item in inner[1].items()}
    if tag in ("$list", "$tuple", "$set", "$frozenset"):
        return [readable(item) for item in inner]
    if tag == "$dict":
        return {str(readable(key)): readable(item) for key, item in inner}
    if tag == "$float":
        number = float(inner)
        return number if number - number == 0 else inner
    if tag == "$step":
        name = inner.get("path") or inner.get("name") or inner["fingerprint"]
        return f"{name}/{inner['part']}" if inner["part"] else name
    if tag == "$enum":
        return inner[1]
    if tag == "$namedtuple":
        return [readable(item) for item in inner[1]]
    return readable(inner) if tag == "$unhashed" else inner
