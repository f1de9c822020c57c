"""
Conversations that show what a template writes; their texts are in no template.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ANSWERS", "ARGUMENT", "CALLS", "DIALOG", "PROBES", "Messages"]

Messages = list[dict[str, Any]]

ANSWERS = ("neveprobefirst", "neveprobelast")
ARGUMENT = "neveprobeargument"
_SYSTEM = {"role": "system", "content": "neveprobesystem"}
_USER = {"role": "user", "content": "neveprobequestion"}
_FIRST, _LAST = ({"role": "assistant", "content": answer} for answer in ANSWERS)
_CALL = {
    "id": "probecall",
    "type": "function",
    "function": {"name": "probe", "arguments": {"x": ARGUMENT}},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "neveprobetool",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
_REPLY = {"role": "tool", "name": "probe", "tool_call_id": "probecall", "content": "neveprobereply"}

DIALOG: Messages = [_USER, _FIRST, _USER, _LAST]
CALLS: Messages = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    _REPLY,
    _LAST,
]
PROBES: tuple[tuple[Messages, list[dict[str, Any]] | None], ...] = (
    ([_USER, _LAST], None),
    ([_SYSTEM, *DIALOG], None),
    ([_USER, {**_LAST, "reasoning_content": "neveprobereasoning"}], None),
    (CALLS, None),
    ([_SYSTEM, _USER, {**_FIRST, "tool_calls": [_CALL]}, _REPLY, _LAST], [_TOOL]),
    ([_USER], None),
)
"""Messages and tools; the last one is for an open header."""
