"""
The schema of kind auto: chosen by the first rows of the files that are read.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from neve_chat.adapt import drop_padding
from neve_chat.detect import NUM_ROWS_LOOKED_AT, Proposal, choose_schema
from neve_chat.input_files import InputFile
from neve_chat.rows import Columns, Piece, read_rows
from neve_chat.schemas import ConversationSchema

__all__ = ["find_schema"]


def find_schema(files: Sequence[InputFile], schema: ConversationSchema, where: str) -> Proposal:
    """
    The one schema that fits the first rows.

    Args:
        files: what is read, in order.
        schema: of kind auto; the fields that it sets are taken over.
        where: what the rows are, for errors.

    Raises:
        ChatInputError: no rows, no schema fits, or more than one does.
    """
    rows = list(itertools.islice(_rows(files), NUM_ROWS_LOOKED_AT))
    proposal = choose_schema(rows, where, schema)
    own, usual = schema.resolved(), ConversationSchema(kind="auto").resolved()
    given = {
        field.name: getattr(own, field.name)
        for field in dataclasses.fields(own)
        if getattr(own, field.name) != getattr(usual, field.name)
    }
    return dataclasses.replace(proposal, schema=dataclasses.replace(proposal.schema, **given))


def _rows(files: Sequence[InputFile]) -> Iterator[dict[str, Any]]:
    for file in files:
        for row in read_rows(Piece(file), Columns(is_all=True)):
            if not row.error:
                yield drop_padding(row.values) if row.is_padded else row.values
