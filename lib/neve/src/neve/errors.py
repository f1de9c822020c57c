"""Errors of neve.

NeveError
|- InputError (ValueError)          the user's input is wrong: exit 2, one sentence, no traceback
|  `- FingerprintMismatchError      an output path holds another step's output
|- StorageError (OSError)           a read or write failed, the path is named
|- FormatError (ValueError)         a file of .neve/ was written by a newer neve, or is damaged
|- LeaseLostError (RuntimeError)    another process owns the output path now
`- StepFailedError (RuntimeError)   a step returned without what it had declared
"""


class NeveError(Exception):
    """Root of every error that neve raises on purpose."""


class InputError(NeveError, ValueError):
    """The user's input is wrong; the message is one sentence that says what to do."""

    exit_code = 2


class FingerprintMismatchError(InputError):
    """An output path is taken by a step with another whole fingerprint."""


class StorageError(NeveError, OSError):
    """A read or a write failed; the message names the path."""


class FormatError(NeveError, ValueError):
    """A file under .neve/ is damaged or of a newer format than this neve reads."""

    exit_code = 2


class LeaseLostError(NeveError, RuntimeError):
    """Another process took the output path over; the caller must stop writing at once."""


class StepFailedError(NeveError, RuntimeError):
    """A step function returned, yet what it had declared is not there."""


def did_you_mean(word: str, known: list[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known word, or an empty string."""
    import difflib  # only needed on the way to an error

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
