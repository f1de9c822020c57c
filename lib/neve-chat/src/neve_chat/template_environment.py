"""
Jinja as transformers sets it up for chat templates, with the places of generation blocks noted.

Trimmed blocks, loop controls, JSON neither sorted nor escaped; sandboxed, but for templates that
come with neve, where the guard would take a quarter of the time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from neve_chat.templates import is_built_in

__all__ = ["CompiledTemplate", "MisplacedBlock"]

_MISSING = object()
_BORDER = "border of a generation block"  # no template can write that
_DICT_NAMES = frozenset(dir(dict))


class MisplacedBlock(Exception):
    """
    A generation block sits where its position in the text cannot be known.
    """


class CompiledTemplate:
    """
    A template that renders with the spans of its generation blocks. Not for several threads at once.
    """

    def __init__(self, template: str) -> None:
        """
        Raises:
            jinja2.TemplateSyntaxError: it is not valid Jinja.
        """
        kind = _Environment if is_built_in(template) else _SandboxedEnvironment
        environment = kind(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTracker, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.environment: jinja2.Environment = environment
        """What it is compiled in."""
        self._tracker: _GenerationTracker = environment.generation_tracker  # type: ignore[attr-defined]
        self._tracker.is_plain = _stand_in_main_text(environment.parse(template))
        self._template = environment.from_string(template)
        self._globals = dict(self._template.globals)

    def render(self, variables: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        """
        Returns:
            The text, and the character ranges of its generation blocks, in order, never empty.

        Raises:
            MisplacedBlock: a block stands in a macro, filter or set block.
        """
        template, tracker, pieces = self._template, self._tracker, []
        tracker.start(pieces)
        # What Template.generate does without passing each piece on through another generator, and
        # Template.new_context without putting the global variables together again.
        context = jinja2.runtime.Context(
            self.environment, {**self._globals, **variables}, template.name, template.blocks
        )
        for piece in template.root_render_func(context):
            pieces.append(piece)
        text = "".join(pieces)
        return text, tracker.spans(text)


class _GenerationTracker(jinja2.ext.Extension):
    """
    Notes which of the pieces rendered so far each generation block consists of.
    """

    tags = {"generation"}  # noqa: RUF012  declared so by jinja2.ext.Extension

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.is_plain = False
        """Whether blocks are parsed as the statements they hold instead of as a call of a macro."""
        self._pieces: list[str] = []
        self._borders: list[int] = []
        self._written: list[str] = []
        environment.extend(generation_tracker=self)
        # A filter, because compiled templates call one directly. With the context, because Jinja
        # may call others already when it compiles.
        environment.filters[_BORDER] = jinja2.pass_context(lambda _context, _value: self._mark())

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        if not self.is_plain:
            return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)
        nothing = jinja2.nodes.Const(None)
        border = jinja2.nodes.ExprStmt(
            jinja2.nodes.Filter(nothing, _BORDER, [], [], None, None).set_lineno(line)
        )
        return jinja2.nodes.Scope([border, *body, border]).set_lineno(line)

    def start(self, pieces: list[str]) -> None:
        """
        A rendering begins, whose pieces go into that list.
        """
        self._pieces, self._borders, self._written = pieces, [], []

    def spans(self, text: str) -> list[tuple[int, int]]:
        """
        The blocks of the rendering that is done.
        """
        ends = [0, *itertools.accumulate(map(len, self._pieces))]
        if self.is_plain:
            places = [ends[border] for border in self._borders]
            found = list(zip(places[::2], places[1::2], strict=True))
        else:
            found = [
                (ends[border], ends[border] + len(written))
                for border, written in zip(self._borders, self._written, strict=True)
            ]
            for (start, _), written in zip(found, self._written, strict=True):
                if not text.startswith(written, start):
                    raise MisplacedBlock
        return [(start, end) for start, end in found if start < end]

    def _mark(self) -> None:
        self._borders.append(len(self._pieces))

    def _note(self, caller: jinja2.runtime.Macro) -> str:
        self._mark()
        written = caller()
        self._written.append(written)
        return written


# Where what is rendered goes straight into the text.
_OPEN = (jinja2.nodes.For, jinja2.nodes.If, jinja2.nodes.Scope, jinja2.nodes.With)
# What means another thing, or none, inside the macro that transformers makes of a block.
_MACRO_NAMES = frozenset({"caller", "varargs", "kwargs"})


def _stand_in_main_text(tree: jinja2.nodes.Template) -> bool:
    """
    Whether every generation block can be rendered in place, as if its marks weren't there.

    Args:
        tree: with blocks as calls.
    """
    blocks = [call for call in tree.find_all(jinja2.nodes.CallBlock) if _is_generation(call)]
    return sum(1 for _ in _blocks_in_place(tree)) == len(blocks) and not any(
        any(block.find_all((jinja2.nodes.Break, jinja2.nodes.Continue)))
        or any(name.name in _MACRO_NAMES for name in block.find_all(jinja2.nodes.Name))
        for block in blocks
    )


def _blocks_in_place(node: jinja2.nodes.Node) -> Iterator[jinja2.nodes.Node]:
    for child in node.iter_child_nodes():
        if isinstance(child, jinja2.nodes.CallBlock) and _is_generation(child):
            yield child
        elif isinstance(child, _OPEN) and not getattr(child, "recursive", False):
            yield from _blocks_in_place(child)


def _is_generation(block: jinja2.nodes.CallBlock) -> bool:
    called = block.call.node
    return isinstance(called, jinja2.nodes.ExtensionAttribute) and (
        called.identifier == _GenerationTracker.identifier
    )


class _DictionariesFirst:
    """
    Looks into plain dictionaries first: a key that isn't there costs Jinja two exceptions, and chat
    templates ask for many.
    """

    undefined: Any

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str:
            value = obj.get(argument, _MISSING)
            if value is not _MISSING:
                return value
            if argument not in _DICT_NAMES:
                return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)  # type: ignore[misc]

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_NAMES:
            value = obj.get(attribute, _MISSING)
            return self.undefined(obj=obj, name=attribute) if value is _MISSING else value
        return super().getattr(obj, attribute)  # type: ignore[misc]


class _Environment(_DictionariesFirst, jinja2.Environment):
    """
    For templates that come with neve.
    """


class _SandboxedEnvironment(_DictionariesFirst, jinja2.sandbox.ImmutableSandboxedEnvironment):
    """
    The sandbox of transformers, with its verdicts kept: they depend on type and name alone.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._verdicts: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = (type(obj), attr)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = super().is_safe_attribute(obj, attr, value)
        return verdict


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
