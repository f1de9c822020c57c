"""
A schema that reads no row at all, found before the work instead of after it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neve_chat.adapt import Conversation, RowAdapter, RowRejected, drop_padding, roles_report
from neve_chat.checks import RowPolicies
from neve_chat.column_values import ColumnValues
from neve_chat.detect import propose_schemas
from neve_chat.errors import ChatInputError
from neve_chat.input_files import InputFile
from neve_chat.parts import Part
from neve_chat.rows import Columns, SourceRow, read_rows
from neve_chat.schemas import ConversationSchema
from neve_chat.units import pieces_of

__all__ = ["adapt_row", "first_rows", "refuse_wrong_schema", "schema_advice"]

_NUM_UNITS = 8
_ROWS_PER_UNIT = 128
_ENOUGH_ROWS = 100
_MAX_FRACTION = 0.5
_DESCRIBED_ROWS = 20


def refuse_wrong_schema(
    parts: Sequence[Part],
    files: Mapping[str, InputFile],
    schema: ConversationSchema,
    policies: RowPolicies,
    *,
    max_rejected_fraction: float,
    what: str,
) -> None:
    """
    Stop where none of the first rows of up to 8 units, spread over the input, can be read.

    As a rule one row is looked at. Inputs of less than 100 rows, and those of which half may be
    refused, are left to the work itself.

    Args:
        parts: all units.
        files: name -> file.
        schema: of any kind but auto.
        policies: what happens to rows with faults.
        max_rejected_fraction: share of rows that may be refused, 0 to 1.
        what: what the rows are, for the message.

    Raises:
        ChatInputError: no row passed, with columns, roles, reasons and tags to pass; or a row has a
            fault whose policy is error.
    """
    if max_rejected_fraction >= _MAX_FRACTION:
        return
    adapter = RowAdapter(schema, policies)
    reasons: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    example = ""
    for row in _first_rows(parts, dict(files), schema):
        try:
            adapt_row(adapter, row)
        except RowRejected as refusal:
            reasons[refusal.reason] += 1
            example = example or f"row {row.place}: {refusal}"
        else:
            return
        rows += _described(row) if len(rows) < _DESCRIBED_ROWS else ()
    if reasons.total() < _ENOUGH_ROWS:
        return
    listed = ", ".join(f"{reason} x{count:,}" for reason, count in reasons.most_common())
    raise ChatInputError(
        f"{what}: at least one of the first rows must be a conversation, got {reasons.total():,} "
        f"refused rows from the beginnings of {min(len(parts), _NUM_UNITS)} units ({listed}). "
        f"{schema_advice(adapter, rows)}. Correct the schema so that it fits the rows. "
        f"Example: {example}."
    )


def adapt_row(adapter: RowAdapter, row: SourceRow) -> Conversation:
    """
    The conversation of a row as it was read.

    Raises:
        RowRejected: it could not be read, or a policy drops it.
        ChatInputError: a policy stops at it.
    """
    if row.error:
        raise RowRejected("unreadable row", row.error)
    return adapter.adapt(row.values, is_padded=row.is_padded, where=row.place)


def first_rows(
    parts: Sequence[Part], files: Mapping[str, InputFile], schema: ConversationSchema
) -> list[dict[str, Any]]:
    """
    Some rows to describe, without padding.
    """
    rows = itertools.islice(_first_rows(parts, dict(files), schema), _DESCRIBED_ROWS)
    return [values for row in rows for values in _described(row)]


def schema_advice(adapter: RowAdapter, rows: Sequence[Mapping[str, Any]]) -> str:
    """
    Roles and tags as `roles_report` tells them, the columns, and schemas that fit; no full stop.

    Args:
        adapter: after it has seen rows.
        rows: some of them, without padding; may be none.
    """
    report = roles_report(adapter)
    if not rows:
        return report
    values, known = ColumnValues(rows), adapter.schema.role_map()
    columns = "; ".join(values.describe(column, known) for column in values.values)
    fitting = [
        proposal.schema.expression()
        for proposal in propose_schemas(rows)
        if proposal.schema.required_columns() != adapter.schema.required_columns()
        or proposal.schema.role_map() != known
    ]
    advice = f"{report}. Columns: {columns or 'none'}"
    return f"{advice}. What fits: {' or '.join(fitting)}" if fitting else advice


def _described(row: SourceRow) -> list[dict[str, Any]]:
    if row.error:
        return []
    return [drop_padding(row.values) if row.is_padded else row.values]


def _first_rows(
    parts: Sequence[Part], files: dict[str, InputFile], schema: ConversationSchema
) -> Iterator[SourceRow]:
    columns = Columns(schema.required_columns(), schema.optional_columns())
    count = min(len(parts), _NUM_UNITS)
    for number in range(count):
        part = parts[number * (len(parts) - 1) // max(count - 1, 1)]
        rows = (row for piece in pieces_of(part, files) for row in read_rows(piece, columns))
        yield from itertools.islice(rows, _ROWS_PER_UNIT)
