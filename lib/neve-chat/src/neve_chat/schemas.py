"""
Where a conversation stands in a row, and how it becomes canonical messages.

A canonical message is a dict with the keys role, content, reasoning_content, weight, name, tool_calls
and tool_call_id in this order; all but role and content only where the row has them, weight only where
it is 0: an assistant's turn that is not trained. Roles are system,
user, assistant and tool. A tool call is {id?, type, function: {name, arguments: object}}.

| kind | columns (defaults) |
|---|---|
| messages | messages: turns with role and content, tool_calls, tool_call_id, name, reasoning |
| sharegpt | conversations: turns with from and value |
| harmony | messages: turns with role, channel, recipient and content, one channel per turn |
| instruction | instruction and response: text, a turn or turns |
| alpaca | instruction, input, output, system, history |
| dolly | instruction, context, response |
| preference | prompt and chosen; chosen may hold the prompt's turns too; rejected is not read |
| auto | found in the first rows by neve_chat.detect, or refused |

The OpenThoughts-Agent layout is `ConversationSchema(conversation_column="conversations")`. Nested
completions are kind instruction with metric_key or use_first_response.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from neve_chat.errors import ChatInputError

__all__ = ["KINDS", "ROLES", "ConversationSchema"]

ROLES = ("user", "assistant", "system", "tool")
KINDS = (
    "messages",
    "sharegpt",
    "instruction",
    "alpaca",
    "dolly",
    "preference",
    "harmony",
    "auto",
)
_TURN_KINDS = ("messages", "sharegpt", "harmony")
_KIND_DEFAULTS = {
    "messages": {"conversation_column": "messages", "role_key": "role", "content_key": "content"},
    "sharegpt": {
        "conversation_column": "conversations",
        "role_key": "from",
        "content_key": "value",
    },
    "harmony": {"conversation_column": "messages", "role_key": "role", "content_key": "content"},
    "instruction": {
        "instruction_column": "instruction",
        "response_column": "response",
        "role_key": "role",
        "content_key": "content",
    },
    "alpaca": {
        "instruction_column": "instruction",
        "context_column": "input",
        "response_column": "output",
        "history_column": "history",
        "system_column": "system",
        "role_key": "role",
        "content_key": "content",
    },
    "dolly": {
        "instruction_column": "instruction",
        "context_column": "context",
        "response_column": "response",
        "role_key": "role",
        "content_key": "content",
    },
    "preference": {
        "instruction_column": "prompt",
        "response_column": "chosen",
        "role_key": "role",
        "content_key": "content",
    },
    "auto": {},
}
# Kinds that only fill in names; resolved() writes them as the kind that they mean.
_SAME_AS = {"sharegpt": "messages", "alpaca": "instruction", "dolly": "instruction"}
_TWO_COLUMN_FIELDS = (
    "instruction_column",
    "context_column",
    "response_column",
    "history_column",
    "metric_key",
    "use_first_response",
)


@dataclass(frozen=True, kw_only=True)
class ConversationSchema:
    """
    The layout of one data set.
    """

    kind: str = "messages"
    """One of messages, sharegpt, instruction, alpaca, dolly, preference, harmony and auto."""
    conversation_column: str = ""
    """Column with the list of turns; empty: messages, or conversations for sharegpt."""
    role_key: str = ""
    """Key of a turn's role; empty: role, or from for sharegpt."""
    content_key: str = ""
    """Key of a turn's or a completion's text; empty: content, or value for sharegpt."""
    user: tuple[str, ...] = ("user", "human")
    """Role values in the data that mean the user; compared exactly, as all role values."""
    assistant: tuple[str, ...] = ("assistant", "gpt")
    """Role values that mean the assistant, whose turns are trained."""
    system: tuple[str, ...] = ("system", "developer")
    """Role values that mean system instructions."""
    tool: tuple[str, ...] = ("tool", "function", "observation")
    """Role values that mean the reply of a tool."""
    function_call: tuple[str, ...] = ("function_call",)
    """Role values of an assistant turn whose text is one tool call, or a list of them, as JSON."""
    reasoning_keys: tuple[str, ...] = ("reasoning_content", "reasoning")
    """Keys of an assistant turn that hold its reasoning; the first with text is taken."""
    reasoning_tags: tuple[str, str] | None = None
    """Tags, such as ("<think>", "</think>"), whose text at the start of an assistant's turn becomes
    its reasoning; None: text stays as it is."""
    instruction_column: str = ""
    """Column with the user's text or turns; empty: instruction, or prompt for preference."""
    context_column: str = ""
    """Column put below the instruction where it has text; empty: none, input for alpaca, context
    for dolly."""
    context_separator: str = "\n\n"
    """Text between instruction and context."""
    response_column: str = ""
    """Column with the assistant's text or turns; empty: response, output for alpaca, chosen for
    preference."""
    metric_key: str = ""
    """The response column holds a list of completions: the one with the largest number under this
    key is taken, of equal ones the first; empty: no list."""
    use_first_response: bool = False
    """The response column holds a list, and its first item is taken."""
    history_column: str = ""
    """Column with earlier (user, assistant) pairs; empty: none, history for alpaca."""
    system_column: str = ""
    """Column with system instructions, used where the turns have none; empty: none, system for
    alpaca."""
    tools_column: str = "tools"
    """Column with the functions' JSON signatures, as a list or as JSON text; may be absent from a
    row; empty: none."""
    template_kwargs_column: str = "chat_template_kwargs"
    """Column with further variables for the template; may be absent from a row; empty: none."""
    id_column: str = ""
    """Column whose value becomes the row's id; empty: the sha256 of the canonical messages."""
    keep_empty_answers: bool = False
    """Keep conversations whose assistant turns are all empty and would train end tokens only; the
    same as the policy empty_answer="keep"."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ChatInputError(
                f"conversation schema: kind must be one of {', '.join(KINDS)}, got "
                f"{self.kind!r}. Pass one of them."
            )
        self._check_roles()
        self._check_fields_of_kind()
        tags = self.reasoning_tags
        if tags is not None and (isinstance(tags, str) or len(tags) != 2 or not all(tags)):
            raise ChatInputError(
                "conversation schema: reasoning_tags must be two texts, the opening and the "
                f'closing tag, got {tags!r}. Write ("<think>", "</think>").'
            )

    def _check_roles(self) -> None:
        owner: dict[str, str] = {}
        for role in (*ROLES, "function_call"):
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

    def _check_fields_of_kind(self) -> None:
        foreign = _TWO_COLUMN_FIELDS if self.kind in _TURN_KINDS else ("conversation_column",)
        if self.kind == "auto":
            foreign = (*_TWO_COLUMN_FIELDS, "conversation_column", "role_key", "content_key")
        for name in foreign:
            if getattr(self, name):
                raise ChatInputError(
                    f"conversation schema: {name} must be left out for kind {self.kind}, got "
                    f"{getattr(self, name)!r}. Remove it, or choose the kind that it belongs to."
                )
        if self.metric_key and self.use_first_response:
            raise ChatInputError(
                "conversation schema: a list of responses must be chosen from in one way, got "
                f"metric_key={self.metric_key!r} and use_first_response=True. Remove one."
            )
        if self.kind == "harmony" and not self.reasoning_keys:
            raise ChatInputError(
                "conversation schema: reasoning_keys must not be empty for kind harmony, got (). "
                "The analysis channel is kept under the first of them."
            )

    def resolved(self) -> ConversationSchema:
        """
        The same schema in its one canonical spelling: names filled in, kinds that only fill in
        names replaced by what they mean, role values sorted. Equal layouts are then equal.
        """
        names = {
            name: getattr(self, name) or value for name, value in _KIND_DEFAULTS[self.kind].items()
        }
        roles = {role: tuple(sorted(set(getattr(self, role)))) for role in ROLES}
        return dataclasses.replace(
            self,
            kind=_SAME_AS.get(self.kind, self.kind),
            function_call=tuple(sorted(set(self.function_call))),
            **names,
            **roles,
        )

    def role_map(self) -> dict[str, str]:
        """
        Role value in the data -> canonical role; function calls are the assistant's.
        """
        roles = {value: role for role in ROLES for value in getattr(self, role)}
        return roles | dict.fromkeys(self.function_call, "assistant")

    def required_columns(self) -> tuple[str, ...]:
        """
        Columns without which no row can be read; none for auto, which must be chosen first.
        """
        own = self.resolved()
        if own.kind == "auto":
            return ()
        if own.kind == "instruction":
            return (own.instruction_column, own.response_column)
        if own.kind == "preference":
            return (own.response_column,)
        return (own.conversation_column,)

    def optional_columns(self) -> tuple[str, ...]:
        """
        Columns that are read where they exist.
        """
        own = self.resolved()
        names = (
            own.instruction_column if own.kind == "preference" else "",
            own.context_column,
            own.history_column,
            own.system_column,
            own.tools_column,
            own.template_kwargs_column,
            own.id_column,
        )
        return tuple(name for name in names if name)

    def describe(self) -> str:
        """
        The settings a user would change, as they would be written.
        """
        own = self.resolved()
        if own.kind in _TURN_KINDS:
            names = ["kind", "conversation_column", "role_key", "content_key", *ROLES]
        else:
            names = ["kind", *(name for name in _TWO_COLUMN_FIELDS if getattr(own, name))]
        return ", ".join(f"{name}={getattr(own, name)!r}" for name in names)

    def expression(self) -> str:
        """
        The Python expression that makes this schema, with only what differs from the defaults.
        """
        fields = dataclasses.fields(self)
        changed = [f.name for f in fields if getattr(self, f.name) != f.default]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in changed)
        return f"ConversationSchema({values})"
