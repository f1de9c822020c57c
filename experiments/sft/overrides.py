"""`--spec.<field> VALUE`: a recipe's fields changed from the command line, decoded by draccus."""

import dataclasses
import difflib
import typing
from types import NoneType, UnionType
from typing import Any

from neve import InputError
from neve.options import refuse_unknown

FLAG = "--spec."

_NONE = ("none", "null", "~")


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
            _refuse_stranger(spec, flag)
        path, equals, value = flag[len(FLAG) :].partition("=")
        if not equals:
            if not rest:
                raise InputError(f"{flag}: must be followed by a value, got nothing. Add one.")
            value = rest.pop(0)
        changes[tuple(path.split("."))] = value
    return _replaced(type(spec), spec, changes, FLAG.rstrip("."))


def _refuse_stranger(spec: Any, flag: str) -> None:
    """Refuses a word that is no option, with the flag that may have been meant."""
    name = flag.lstrip("-").partition("=")[0]
    meant = "<field>" if name == "spec" else name
    known = ["<field>", *(field.name for field in dataclasses.fields(spec))]
    if flag.startswith("--") and meant.partition(".")[0] in known:
        raise InputError(
            f"argument {flag}: must be a known option, got an unknown one. Write {FLAG}{meant} VALUE."
        )
    refuse_unknown([flag])


def _replaced(kind: Any, node: Any, changes: dict[tuple[str, ...], str], flag: str) -> Any:
    """Returns a copy of `node` with all changes at once, so that fields that depend on each other can change.

    Where `node` is None, it is a new object of `kind`.
    """
    below: dict[str, dict[tuple[str, ...], str]] = {}
    for (name, *rest), text in changes.items():
        below.setdefault(name, {})[tuple(rest)] = text
    if isinstance(node, tuple):
        return _replaced_items(node, below, flag)
    values = {
        name: _value(kind, node, name, inner, f"{flag}.{name}") for name, inner in below.items()
    }
    if node is not None:
        return dataclasses.replace(node, **values)
    for field in dataclasses.fields(kind):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise InputError(f"{flag}: must have {field.name}, got none. Add {flag}.{field.name}.")
    return kind(**values)


def _replaced_items(
    node: tuple[Any, ...], below: dict[str, dict[tuple[str, ...], str]], flag: str
) -> tuple[Any, ...]:
    """Returns a copy of a tuple of groups with changes inside some of them."""
    items = list(node)
    if not all(dataclasses.is_dataclass(item) for item in items):
        raise InputError(
            f"{flag}: must be given as a whole, got an element of it. Write {flag} '[a, b]'."
        )
    for name, inner in below.items():
        if not name.isdigit() or int(name) >= len(items):
            raise InputError(
                f"{flag}: must name an element from 0 to {len(items) - 1}, got {name!r}. "
                f"Write for example {flag}.0.<field>."
            )
        if () in inner:
            raise _refused_group(items[int(name)], inner[()], f"{flag}.{name}")
        index = int(name)
        items[index] = _replaced(type(items[index]), items[index], inner, f"{flag}.{name}")
    return tuple(items)


def _value(kind: Any, node: Any, name: str, inner: dict[tuple[str, ...], str], flag: str) -> Any:
    """Returns the new value of one field: decoded, or a copy with changes inside."""
    names = [field.name for field in dataclasses.fields(kind)]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else f" Fields: {', '.join(names)}."
        raise InputError(f"{flag}: must name a field of {kind.__name__}, got {name!r}.{hint}")
    value, hint = getattr(node, name, None), typing.get_type_hints(kind)[name]
    if () in inner:
        return _decode(hint, value, inner[()], flag)
    groups = [member for member in _members(hint) if dataclasses.is_dataclass(member)]
    if dataclasses.is_dataclass(value) or isinstance(value, tuple):
        return _replaced(type(value), value, inner, flag)
    if value is None and groups:
        return _replaced(groups[0], None, inner, flag)
    raise InputError(
        f"{flag}: must hold fields of its own to change one, got {value!r}. Drop the rest of the name."
    )


def _decode(hint: Any, old: Any, text: str, flag: str) -> Any:
    """Decodes one value as draccus would from a configuration file."""
    import draccus  # 0.15 s, only paid when a field is overridden
    import yaml

    members = _members(hint)
    if NoneType in members and text.lower() in _NONE:
        return None
    groups = [member for member in members if _is_group(member)]
    if groups or dataclasses.is_dataclass(old):
        raise _refused_group(groups[0] if old is None else old, text, flag)
    kinds = set(members) - {NoneType}
    try:
        raw = text if kinds == {str} else yaml.safe_load(text)
        if isinstance(raw, bool) and kinds in ({int}, {float}):
            raise ValueError(text)
        if kinds == {float}:
            raw = float(raw)  # YAML reads 5e-5 as text
        if kinds == {int} and not isinstance(raw, int):
            raise ValueError(text)
        if typing.get_origin(hint) is tuple and not isinstance(raw, list):
            raise InputError(f"{flag}: must be a list, got {text!r}. Write it as '[a, b]'.")
        return draccus.decode(hint, raw)
    except (ValueError, TypeError, yaml.YAMLError, draccus.utils.DecodingError) as error:
        if isinstance(error, InputError):
            raise
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        raise InputError(f"{flag}: must be {wanted}, got {text!r}. Change the value.") from error


def _members(hint: Any) -> tuple[Any, ...]:
    """Returns the kinds of a union, or the only one."""
    return typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _is_group(kind: Any) -> bool:
    """Whether values of a kind have fields of their own: config objects, sources, or tuples of them."""
    if typing.get_origin(kind) is tuple:
        return any(map(_is_group, typing.get_args(kind)))
    return dataclasses.is_dataclass(kind) or getattr(kind, "_is_protocol", False)


def _refused_group(group: Any, text: str, flag: str) -> InputError:
    """Returns the error for a value where only fields of `group`, or of its elements, have one."""
    if isinstance(group, tuple):
        flag, group = f"{flag}.0", group[0]
    fields = ", ".join(field.name for field in dataclasses.fields(group))
    return InputError(
        f"{flag}: must be changed field by field, got {text!r}. Write {flag}.<field>; fields: {fields}."
    )
