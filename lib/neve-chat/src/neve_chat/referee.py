"""
The tokenizers library watches over fastokens: what they do not agree on is not fast.

Both encode a fixed set of nasty texts, the first 8 conversations and then fewer and fewer, down to
one of 1,024; and of every conversation the bytes of the tokens have to sum to those of the text. At
the first difference the fast encoder is given up for good.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Sequence

import numpy as np

from neve_chat.encoded import Tokens
from neve_chat.fast_encoder import FastEncoder, reason_against
from neve_chat.render import Rendered

__all__ = ["Referee"]

_logger = logging.getLogger(__name__)

# tokenizers takes 30 to 50 times as long, so one of 128 would cost a third of the time.
_SAMPLE_EVERY = 1024
_NUM_FIRST = 8
_NASTY_TEXTS = (
    "Hello,  world!\tIt's  we'LL   they've \n\n  x\r\n\r\n \r y\n \n\n\t\tz   ",
    "0 12 123 1234 12345678901234567890 3.14e-10 1,000,000 \u0661\u0662\u0663 \u00b2\u00bd\u2167",
    "na\u00efve caf\u00e9 Stra\u00dfe \u0130\u0131 \ufb01 \u212b \u2026 \u201cq\u201d a\u0301 \u0344",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",
    "\u043f\u0440\u0438\u0432\u0435\u0442 \u05e9\u05dc\u05d5\u05dd "
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600\U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea\u26a0\ufe0f\U0001d518 \U00020000\U0010ffff",
    "\x00\x01\x1b[31mred\x1b[0m\x7f\x80\x85\xa0\xad\u200b\u200f\u2028\u2029\u202f\u3000\ufeff\ufffd\ue000\ufdd0",
    "\u0300\u0301x\u0327\u0300 e\u0301\u0328 \u1100\u1161 q\u0323\u0307 \u0958",
    "def f(x):\n    return {'a': [1, 2.5e3], \"b\": None}  # \u2192\n\n\n\tif x!=y&&z||w: i+=1;//*_-=\n",
    '{"command": "ls -la | grep \\"x\\"\\n", "n": -1, "u": "\\u00e9"}\n</tool_call>\n<think>\n\n</think>',
    " " * 200 + "x" + "\n" * 70 + "\t" * 40 + " \n" * 30 + "=" * 100 + "a" * 300 + "\u00e9" * 90,
    "<|im_start|>user\n<|im_end|><|eot_id|><s>[INST] <<SYS>> </s> < | > <|im_ <||> <|>",
    "",
)


class Referee:
    """
    Encodes with the fast encoder as long as it agrees with the slow one.
    """

    def __init__(
        self,
        json_bytes: bytes,
        slow: Callable[[Sequence[Rendered]], list[Tokens]],
        special_texts: Sequence[str],
        *,
        threshold: int | None,
    ) -> None:
        """
        Args:
            json_bytes: tokenizer.json.
            slow: what is right by definition.
            special_texts: special tokens, to be tried at the start.
            threshold: characters after which the fast encoder is loaded; None for never.
        """
        self.num_fast = 0
        self.num_refereed = 0
        self.num_differences = 0
        self.suspect = False
        self.message = ""
        self._json_bytes = json_bytes
        self._slow = slow
        self._special_texts = special_texts
        self._threshold = threshold
        self._num_chars = 0
        self._fast: FastEncoder | None = None
        self._unit = "conversation"

    @property
    def is_fast(self) -> bool:
        """
        Whether the fast encoder is in use.
        """
        return self._fast is not None

    def load(self) -> str:
        """
        Load the fast encoder if it can be exact, and try it.

        Returns:
            Why it is not used; empty if it is.
        """
        self._threshold = None
        text = self._json_bytes.decode("utf-8")
        content = json.loads(text)
        self.message = reason_against(content) or ""
        if self.message:
            return self.message
        try:
            fast = FastEncoder(text, content)
        except ValueError as error:
            self.message = f"fastokens cannot load it: {error}"
            return self.message
        specials = self._special_texts
        trials = [
            Rendered(text, tuple((i, min(i + 4, len(text))) for i in range(0, len(text), 7)))
            for text in (*_NASTY_TEXTS, "".join(specials), " a ".join(specials))
            if fast.accepts(text)
        ]
        self._fast = fast
        self._unit = "trial text"
        self._refereed(trials, range(len(trials)))
        self.num_fast = 0
        self.suspect = False
        self._unit = "conversation"
        return self.message

    def encode(self, conversations: Sequence[Rendered]) -> list[Tokens]:
        """
        Ids and masks of each conversation.
        """
        if self._threshold is not None:
            self._num_chars += sum(len(rendered.text) for rendered in conversations)
            if self._num_chars >= self._threshold:
                self.load()
        if self._fast is None:
            return self._slow(conversations)
        accepted = [self._fast.accepts(rendered.text) for rendered in conversations]
        fast = list(itertools.compress(conversations, accepted))
        slow = list(itertools.compress(conversations, (not is_fast for is_fast in accepted)))
        sample = [index for index in range(len(fast)) if _is_sampled(self.num_fast + index)]
        results = {True: iter(self._refereed(fast, sample)), False: iter(self._slow(slow))}
        return [next(results[is_fast]) for is_fast in accepted]

    def _refereed(self, conversations: Sequence[Rendered], sample: Sequence[int]) -> list[Tokens]:
        """
        Fast up to the first difference, slow from there on.
        """
        assert self._fast is not None
        error = "their bytes do not sum to those of the text"
        try:
            fast = self._fast.encode(conversations)
        except ValueError as failure:
            fast, error = [], f"fastokens gave up: {failure}"
        right = self._slow([conversations[index] for index in sample])
        self.num_refereed += len(sample)
        wrong = [
            index
            for index, tokens in zip(sample, right, strict=True)
            if index < len(fast) and not _is_equal(tokens, fast[index])
        ]
        num_good = min([len(fast), *wrong])
        if num_good < len(conversations):
            self.num_differences += len(wrong) + (len(fast) < len(conversations))
            self._give_up("tokenizers gives others" if wrong else error, num_good)
        self.num_fast += num_good
        return fast[:num_good] + self._slow(conversations[num_good:])

    def _give_up(self, error: str, num_good: int) -> None:
        number = self.num_fast + num_good
        self.message = (
            f"fastokens got the ids of {self._unit} {number:,} wrong ({error}), so tokenizers "
            "encodes it and all that follow"
        )
        self.suspect = number > 0
        self._fast = None
        _logger.warning("%s", self.message)


def _is_sampled(number: int) -> bool:
    is_power_of_two = number & (number - 1) == 0
    return number < _NUM_FIRST or is_power_of_two or number % _SAMPLE_EVERY == 0


def _is_equal(left: Tokens, right: Tokens) -> bool:
    return np.array_equal(left.ids, right.ids) and np.array_equal(left.mask, right.mask)
