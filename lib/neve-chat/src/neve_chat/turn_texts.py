"""
Where the contents of messages stand in a rendered conversation, found exactly for any template.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neve_chat.adapt import RowRejected

if TYPE_CHECKING:
    from neve_chat.render import ChatRenderer

__all__ = ["find_contents"]

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


def find_contents(
    text: str, row: Mapping[str, Any], renderer: ChatRenderer
) -> dict[int, tuple[int, int]]:
    """
    Message index -> where its content stands in the text, for all messages but the assistant's.

    The row is rendered once more with a private-use character at both ends of each content: what
    remains without them must be the same text. A content that isn't text is taken as JSON. A
    template that trims contents is given trimmed ones, after whole ones changed the text; a content
    that it leaves out isn't in the result.

    Raises:
        RowRejected: neither way gives the same text.
    """
    messages: Sequence[Mapping[str, Any]] = row["messages"]
    contents = {
        index: content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        for index, message in enumerate(messages)
        if message["role"] != "assistant" and (content := message.get("content")) is not None
    }
    pool = _unused(text, 2 * len(contents))
    marks = {index: (next(pool), next(pool)) for index in contents}
    for is_trimmed in (False, True):
        marked = [dict(message) for message in messages]
        for index, (left, right) in marks.items():
            content = contents[index]
            core = content.strip() if is_trimmed else content
            if core or not is_trimmed:
                before, _, after = content.partition(core) if core else ("", "", "")
                marked[index]["content"] = f"{before}{left}{core}{right}{after}"
        candidate = renderer.render_row({**row, "messages": marked}).text
        if (found := _unmarked(candidate, text, marks)) is not None:
            return found
    raise RowRejected(
        "turn not found", "the template changes the texts of turns whose role is to be trained"
    )


def _unmarked(
    candidate: str, text: str, marks: Mapping[int, tuple[str, str]]
) -> dict[int, tuple[int, int]] | None:
    """
    Where the marks stand once they are taken out; None if what remains is another text.
    """
    owner = {mark: (index, side) for index, pair in marks.items() for side, mark in enumerate(pair)}
    pattern = re.compile("|".join(owner)) if owner else re.compile("(?!)")
    ends: dict[int, dict[int, int]] = {}
    for num_before, match in enumerate(pattern.finditer(candidate)):
        index, side = owner[match[0]]
        if ends.setdefault(index, {}).setdefault(side, match.start() - num_before) != (
            match.start() - num_before
        ):
            return None  # rendered twice
    if pattern.sub("", candidate) != text or any(len(sides) != 2 for sides in ends.values()):
        return None
    return {index: (sides[0], sides[1]) for index, sides in sorted(ends.items())}


def _unused(text: str, num_chars: int) -> Iterator[str]:
    """
    Private-use characters that the text doesn't hold.
    """
    used = set(text)
    letters = (chr(code) for code in itertools.chain.from_iterable(_PRIVATE_USE))
    return itertools.islice((letter for letter in letters if letter not in used), num_chars)
