"""`--spec.<field> VALUE`: a recipe's fields changed from the command line, decoded by draccus."""

import dataclasses
import difflib
import types
import typing
from typing import Any

from neve import InputError
from neve.options import refuse_unknown

FLAG = "--spec."


def apply_overrides(spec: Any, args: list[str]) -> Any:
    """Returns the spec with every `--spec.a.b VALUE` (or `=VALUE`) of `args` applied, in order.

    Raises:
        InputError: An unknown field (with a did-you-mean), a missing or undecodable value, or a value that
            the spec refuses.
    """
    rest = list(args)
    changes: dict[tuple[str, ...], str] = {}
    while rest:
        flag = rest.pop(0)
        if not flag.startswith(FLAG):
            refuse_unknown([flag])
        path, equals, value = flag[len(FLAG) :].partition("=")
        if not equals:
            if not rest:
                raise InputError(f"{flag}: must be followed by a value, got nothing. Add one.")
            value = rest.pop(0)
        changes[tuple(path.split("."))] = value
    return _replaced(spec, changes, FLAG.rstrip("."))


def _replaced(node: Any, changes: dict[tuple[str, ...], str], flag: str) -> Any:
    """Returns a copy of `node` with all changes at once, so that fields that depend on each other can change."""
    below: dict[str, dict[tuple[str, ...], str]] = {}
    for (name, *rest), text in changes.items():
        below.setdefault(name, {})[tuple(rest)] = text
    if isinstance(node, tuple):
        items = list(node)
        for name, inner in below.items():
            index = _index(node, name, inner, f"{flag}.{name}")
            items[index] = _replaced(items[index], inner, f"{flag}.{name}")
        return tuple(items)
    values = {name: _value(node, name, inner, f"{flag}.{name}") for name, inner in below.items()}
    return dataclasses.replace(node, **values) if values else node


def _index(node: tuple[Any, ...], name: str, inner: dict[tuple[str, ...], str], flag: str) -> int:
    if not name.isdigit() or int(name) >= len(node):
        raise InputError(
            f"{flag}: must name an element from 0 to {len(node) - 1}, got {name!r}. "
            f"Write for example {flag.rpartition('.')[0]}.0."
        )
    if () in inner:
        raise InputError(f"{flag}: must name a field of the element, got none. Add .<field>.")
    return int(name)


def _value(node: Any, name: str, inner: dict[tuple[str, ...], str], flag: str) -> Any:
    """Returns the new value of one field: decoded, or a copy with changes inside."""
    names = [field.name for field in dataclasses.fields(node)]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else f" Fields: {', '.join(names)}."
        raise InputError(f"{flag}: must name a field of {type(node).__name__}, got {name!r}.{hint}")
    if () in inner:
        return _decode(typing.get_type_hints(type(node))[name], inner[()], flag)
    value = getattr(node, name)
    if not (dataclasses.is_dataclass(value) or isinstance(value, tuple)):
        raise InputError(
            f"{flag}: {name!r} must hold fields of its own, got {value!r}. Drop the rest of the name."
        )
    return _replaced(value, inner, flag)


def _decode(kind: Any, text: str, flag: str) -> Any:
    """Decodes one value as draccus would from a configuration file."""
    import draccus  # 0.15 s, only paid when a field is overridden
    import yaml

    if dataclasses.is_dataclass(kind) or getattr(kind, "_is_protocol", False):
        raise InputError(
            f"{flag}: must name a single value, got a group of fields. Add the field, such as {flag}.<field>."
        )
    try:
        raw = text if kind is str else yaml.safe_load(text)
        if kind is float or (_is_optional(kind, float) and raw is not None):
            raw = float(raw)  # YAML reads 5e-5 as text
        return draccus.decode(kind, raw)
    except (ValueError, TypeError, yaml.YAMLError, draccus.utils.DecodingError) as error:
        wanted = getattr(kind, "__name__", None) or str(kind)
        wanted = str(kind) if _is_optional(kind, object) else wanted
        raise InputError(f"{flag}: must be {wanted}, got {text!r}. Change the value.") from error


def _is_optional(kind: Any, inner: type) -> bool:
    """Whether `kind` is `inner | None` (any union for object)."""
    if not isinstance(kind, types.UnionType):
        return False
    return inner is object or inner in typing.get_args(kind)
