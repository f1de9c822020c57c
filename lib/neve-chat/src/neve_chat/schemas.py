"""
Where a conversation stands in a row, and how it becomes canonical messages.

A canonical message is a dict with the keys role, content, reasoning_content, name, tool_calls and
tool_call_id in this order; all but role and content only where the row has them. Roles are system,
user, assistant and tool. A tool call is {id?, type, function: {name, arguments: object}}.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from neve_chat.errors import ChatInputError

__all__ = ["KINDS", "ConversationSchema"]

KINDS = ("messages", "sharegpt", "instruction")
_KIND_DEFAULTS = {
    "messages": ("messages", "role", "content"),
    "sharegpt": ("conversations", "from", "value"),
    "instruction": ("", "role", "content"),
}


@dataclass(frozen=True, kw_only=True)
class ConversationSchema:
    """
    The layout of one data set. Two layouts that mean the same are best written the same way.
    """

    kind: str = "messages"
    """messages: a list of role/content turns; sharegpt: of from/value turns; instruction: two
    columns."""
    conversation_column: str = ""
    """Column with the list of turns; empty: messages, or conversations for sharegpt."""
    role_key: str = ""
    """Key of a turn's role; empty: role, or from for sharegpt."""
    content_key: str = ""
    """Key of a turn's text; empty: content, or value for sharegpt."""
    user: tuple[str, ...] = ("user", "human")
    """Role values in the data that mean the user."""
    assistant: tuple[str, ...] = ("assistant", "gpt")
    """Role values that mean the assistant, whose turns are trained."""
    system: tuple[str, ...] = ("system", "developer")
    """Role values that mean system instructions."""
    tool: tuple[str, ...] = ("tool", "function", "observation")
    """Role values that mean the reply of a tool."""
    reasoning_keys: tuple[str, ...] = ("reasoning_content", "reasoning")
    """Keys of an assistant turn that hold its reasoning; the first with text is taken."""
    instruction_column: str = "instruction"
    """Column with the user's text (kind instruction)."""
    context_column: str = ""
    """Column put below the instruction after a blank line where it has text; empty: none."""
    response_column: str = "response"
    """Column with the assistant's text (kind instruction)."""
    tools_column: str = "tools"
    """Column with the functions' JSON signatures, as a list or as JSON text; may be absent from a
    row."""
    template_kwargs_column: str = "chat_template_kwargs"
    """Column with further variables for the template; may be absent from a row."""
    id_column: str = ""
    """Column whose value becomes the row's id; empty: the sha256 of the canonical messages."""
    keep_empty_answers: bool = False
    """Keep conversations whose assistant turns are all empty and would train end tokens only."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ChatInputError(
                f"conversation schema: kind must be one of {', '.join(KINDS)}, got "
                f"{self.kind!r}. Pass one of them."
            )
        owner: dict[str, str] = {}
        for role in ("user", "assistant", "system", "tool"):
            values = getattr(self, role)
            if isinstance(values, str):
                raise ChatInputError(
                    f"conversation schema: {role} must be a tuple of role values, got the text "
                    f"{values!r}. "
                    f"Write ({values!r},)."
                )
            for value in values:
                if owner.setdefault(value, role) != role:
                    raise ChatInputError(
                        f"conversation schema: a role value means one role, got {value!r} "
                        f"under both "
                        f"{owner[value]} and {role}. Remove it from one."
                    )
        if not self.assistant:
            raise ChatInputError(
                "conversation schema: assistant must name at least one role value, got none. "
                "Nothing would be trained without it."
            )

    def resolved(self) -> ConversationSchema:
        """
        The same schema with the empty names replaced by those of its kind.
        """
        column, role, content = _KIND_DEFAULTS[self.kind]
        return dataclasses.replace(
            self,
            conversation_column=self.conversation_column or column,
            role_key=self.role_key or role,
            content_key=self.content_key or content,
        )

    def role_map(self) -> dict[str, str]:
        """
        Role value in the data -> canonical role.
        """
        roles = {
            "user": self.user,
            "assistant": self.assistant,
            "system": self.system,
            "tool": self.tool,
        }
        return {value: role for role, values in roles.items() for value in values}

    def required_columns(self) -> tuple[str, ...]:
        """
        Columns without which no row can be read.
        """
        if self.kind == "instruction":
            return (self.instruction_column, self.response_column)
        return (self.resolved().conversation_column,)

    def optional_columns(self) -> tuple[str, ...]:
        """
        Columns that are read where they exist.
        """
        names = (
            self.context_column,
            self.tools_column,
            self.template_kwargs_column,
            self.id_column,
        )
        return tuple(name for name in names if name)

    def describe(self) -> str:
        """
        The settings a user would change, as they would be written.
        """
        names = ["instruction_column", "response_column"]
        if self.kind != "instruction":
            names = ["kind", "conversation_column", "role_key", "content_key"]
            names += ["user", "assistant", "system", "tool"]
        own = self.resolved()
        return ", ".join(f"{name}={getattr(own, name)!r}" for name in names)
