"""
Errors of the conversation room.

    NeveChatError
      ChatInputError (ValueError)   the user's data, schema, template or tokenizer is wrong
"""

from __future__ import annotations

__all__ = ["ChatInputError", "NeveChatError"]


class NeveChatError(Exception):
    """
    Base of every error that neve_chat raises.
    """


class ChatInputError(NeveChatError, ValueError):
    """
    What the user gave is wrong: the message is the whole report, no traceback is needed.
    """

    exit_code = 2
