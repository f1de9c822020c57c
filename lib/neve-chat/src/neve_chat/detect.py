"""
The schema of unknown rows, proposed from their columns, turn keys and role values.

A schema fits where everything it would read has the form it expects in every row looked at and
every role value is one that it maps. One that fits is taken and printed; none or several is an
error: it never guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from neve_chat.column_values import ROLE_KEYS, ColumnValues, role_counts
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema

__all__ = ["NUM_ROWS_LOOKED_AT", "Proposal", "choose_schema", "propose_schemas"]

NUM_ROWS_LOOKED_AT = 100
"""Rows that are enough to look at."""
_CONTENT_KEYS = ("content", "value")
_TURN_KIND_OF_KEYS = {("role", "content"): "messages", ("from", "value"): "sharegpt"}
_INSTRUCTION_COLUMNS = ("instruction", "prompt", "question", "query", "problem")
_RESPONSE_COLUMNS = ("response", "output", "completion", "answer", "solution")
_COMPLETION_COLUMNS = ("responses", "completions", "outputs", "answers", "inferences")
_COMPLETION_KEYS = ("content", "text", "response", "completion", "answer")
_SYSTEM_COLUMNS = ("system", "system_prompt")
_CHANNELS = ("analysis", "commentary", "final")
_AUTO = ConversationSchema(kind="auto")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """
    A schema that fits the rows looked at.
    """

    schema: ConversationSchema
    """The schema as a user would write it."""
    why: str
    """What in the rows it rests on."""

    def text(self) -> str:
        """
        One line to print.
        """
        return f"{self.schema.kind}: {self.why}"


def propose_schemas(
    rows: Sequence[Mapping[str, Any]], base: ConversationSchema = _AUTO
) -> list[Proposal]:
    """
    Every schema that fits, none of them tried on more than the first NUM_ROWS_LOOKED_AT rows.

    Args:
        rows: the first rows.
        base: of kind auto; its role values and whatever else it states hold for every proposal.
    """
    columns = _Rows(rows[:NUM_ROWS_LOOKED_AT], base)
    preferences = list(_preference_proposals(columns))
    taken = {"chosen", "rejected", "prompt"} if preferences else set()
    proposals = preferences
    for column in columns.values:
        if column not in taken:
            proposals += _turn_proposals(columns, column)
    proposals += _text_proposals(columns)
    proposals += _completion_proposals(columns)
    return [variant for proposal in proposals for variant in _with_system(proposal, columns)]


def choose_schema(
    rows: Sequence[Mapping[str, Any]], where: str, base: ConversationSchema = _AUTO
) -> Proposal:
    """
    The one schema that fits.

    Args:
        rows: the first rows.
        where: what they are rows of, for errors.
        base: of kind auto; its role values and whatever else it states hold for the proposal.

    Raises:
        ChatInputError: no rows, no schema fits, or more than one does.
    """
    proposals = propose_schemas(rows, base)
    if len(proposals) == 1:
        return proposals[0]
    if not rows:
        raise ChatInputError(
            f"layout of {where}: at least one row is needed to find it, got 0. Check the files."
        )
    if proposals:
        listed = "; ".join(f"{p.text()}, written {p.schema.expression()}" for p in proposals)
        raise ChatInputError(
            f"layout of {where}: exactly one schema must fit the rows, got {len(proposals)} that "
            f"do: {listed}. Pass the one you mean as schema."
        )
    columns = _Rows(rows[:NUM_ROWS_LOOKED_AT], base)
    known = base.role_map()
    listed = "; ".join(columns.describe(column, known) for column in columns.values) or "none"
    raise ChatInputError(
        f"layout of {where}: one of the known schemas must fit the rows, got these columns: "
        f"{listed}. Pass schema=ConversationSchema(kind='messages', conversation_column=..., "
        "role_key=..., content_key=..., user=(...,), assistant=(...,), system=(...,), "
        "tool=(...,)) with the names above, or kind='instruction' with instruction_column=... and "
        "response_column=...."
    )


class _Rows(ColumnValues):
    """
    The rows' columns, and the schema on which proposals are built.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], base: ConversationSchema) -> None:
        super().__init__(rows)
        self.base = base

    def schema(self, kind: str, **fields: Any) -> ConversationSchema:
        """
        The base with this kind, and of the fields only those that the kind doesn't imply.
        """
        usual = replace(self.base, kind=kind).resolved()
        told = {name: value for name, value in fields.items() if getattr(usual, name) != value}
        return replace(self.base, kind=kind, **told)


def _turn_proposals(columns: _Rows, column: str) -> Iterator[Proposal]:
    turns = columns.objects(column)
    for keys in product(ROLE_KEYS, _CONTENT_KEYS):
        kind = _TURN_KIND_OF_KEYS.get(keys, "messages")
        if kind == "messages" and any(turn.get("channel") in _CHANNELS for turn in turns):
            kind = "harmony"
        names = {"role_key": keys[0], "content_key": keys[1]}
        schema = columns.schema(kind, conversation_column=column, **names)
        why = _turns_fit(turns, schema.resolved(), needs_user=True)
        if why:
            yield Proposal(schema=schema, why=f"{column}[].{keys[0]}/{keys[1]}, {why}")


def _turns_fit(
    turns: Sequence[Mapping[str, Any]], schema: ConversationSchema, *, needs_user: bool
) -> str:
    """
    The roles' counts in words where the turns fit, else nothing.
    """
    counts, roles = role_counts(turns, schema.role_key), schema.role_map()
    if schema.kind == "harmony":
        roles |= {v: "tool" for v in counts if v.startswith("functions.")}
    canonical = {roles.get(value) for value in counts}
    if None in canonical or "assistant" not in canonical:
        return ""
    if needs_user and "user" not in canonical:
        return ""
    if not all(schema.content_key in turn or turn.get("tool_calls") for turn in turns):
        return ""
    contents = [turn.get(schema.content_key) for turn in turns]
    if not any(contents) or not all(_is_content(content) for content in contents):
        return ""
    listed = (f"{value}->{roles[value]} ({count:,})" for value, count in counts.items())
    return f"roles {', '.join(listed)}"


def _is_content(content: Any) -> bool:
    return content is None or isinstance(content, str | list | Mapping)


def _preference_proposals(columns: _Rows) -> Iterator[Proposal]:
    if "chosen" not in columns.values or "rejected" not in columns.values:
        return
    chosen = columns.objects("chosen", from_json=False)
    has_prompt = columns.is_text("prompt") or bool(columns.objects("prompt", from_json=False))
    if "prompt" in columns.values and not has_prompt:
        return
    if columns.is_text("chosen") and columns.is_text("rejected") and has_prompt:
        schema = columns.schema("preference")
        yield Proposal(schema=schema, why="prompt -> user, chosen -> assistant")
    if not columns.objects("rejected", from_json=False):
        return
    for role_key, content_key in product(ROLE_KEYS, _CONTENT_KEYS):
        schema = columns.schema("preference", role_key=role_key, content_key=content_key)
        why = _turns_fit(chosen, schema.resolved(), needs_user=not has_prompt)
        if why:
            prompt = "prompt, " if has_prompt else ""
            yield Proposal(schema=schema, why=f"{prompt}chosen[].{role_key}/{content_key}, {why}")


def _text_proposals(columns: _Rows) -> Iterator[Proposal]:
    for instruction, response in product(_INSTRUCTION_COLUMNS, _RESPONSE_COLUMNS):
        if not (columns.is_text(instruction) and columns.is_text(response)):
            continue
        kind, context = "instruction", ""
        if (instruction, response) == ("instruction", "output"):
            kind, context = "alpaca", "input" if "input" in columns.values else ""
        elif (instruction, response) == ("instruction", "response") and columns.is_text("context"):
            kind, context = "dolly", "context"
        names = {"instruction_column": instruction, "response_column": response}
        schema = columns.schema(kind, **names)
        asked = f"{instruction} and {context}" if context else instruction
        yield Proposal(schema=schema, why=f"{asked} -> user, {response} -> assistant")


def _completion_proposals(columns: _Rows) -> Iterator[Proposal]:
    for instruction, response in product(_INSTRUCTION_COLUMNS, _COMPLETION_COLUMNS):
        completions = columns.objects(response)
        if not (completions and columns.is_text(instruction)):
            continue
        texts = [key for key in _COMPLETION_KEYS if _all_have(completions, key, str)]
        metrics = [key for key in completions[0] if _all_have(completions, key, int | float)]
        if len(texts) != 1 or len(metrics) != 1:
            continue
        schema = columns.schema(
            "instruction",
            instruction_column=instruction,
            response_column=response,
            content_key=texts[0],
            metric_key=metrics[0],
        )
        why = f"{instruction} -> user, {response}[].{texts[0]} with the largest {metrics[0]}"
        yield Proposal(schema=schema, why=f"{why} -> assistant")


def _all_have(objects: Sequence[Mapping[str, Any]], key: str, kind: Any) -> bool:
    values = [item.get(key) for item in objects]
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _with_system(proposal: Proposal, columns: _Rows) -> Iterator[Proposal]:
    """
    One variant for each column of system text; the proposal itself where there is none.
    """
    found = [name for name in _SYSTEM_COLUMNS if columns.is_text(name)]
    if columns.base.system_column:
        found = []
    for name in found:
        usual = proposal.schema.resolved().system_column == name
        schema = proposal.schema if usual else replace(proposal.schema, system_column=name)
        yield Proposal(schema=schema, why=f"{proposal.why}, {name} -> system")
    if not found:
        yield proposal
