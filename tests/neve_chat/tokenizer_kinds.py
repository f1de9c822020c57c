"""
Tokenizers of several kinds, trained on a few lines, each with the markers of ChatML.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>")
_WORDS = r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
_CORPUS = [
    "the cat sat on the mat and the hat  was   there\n\n",
    "def f(x):\n    return x + 12345\n\n\nf(1)\r\n",
    "Straße café naïve 你好世界 привет мир 😀😀 👩‍💻",
    "user assistant system <|im <| |> think",
] * 20


def _byte_level(normalizer: Any = None, *, use_regex: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_level() -> Tokenizer:
    """
    Pieces by regex, as GPT-2.
    """
    return _byte_level()


def unsplit() -> Tokenizer:
    """
    No pieces at all, so tokens reach over every border.
    """
    return _byte_level(use_regex=False)


def trimmed() -> Tokenizer:
    """
    Spaces belong to no token, as GPT-NeoX.
    """
    tokenizer = _byte_level(use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    return tokenizer


def composed() -> Tokenizer:
    """
    NFC and a split pattern, as Qwen.
    """
    tokenizer = _byte_level(normalizers.NFC())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def folded() -> Tokenizer:
    """
    A normalizer that loses characters.
    """
    return _byte_level(
        normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(left=True, right=False)]
        )
    )


def sentence_piece() -> Tokenizer:
    """
    Spaces as part of the words, unknown characters as bytes, as Llama 2.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


FAST_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "unsplit": unsplit,
    "trimmed": trimmed,
    "composed": composed,
}
KINDS: dict[str, Callable[[], Tokenizer]] = {
    **FAST_KINDS,
    "folded": folded,
    "sentence_piece": sentence_piece,
}


def build_kind(kind: str, folder: Path, *, specials: tuple[str, ...] = SPECIALS) -> str:
    """
    A trained tokenizer stands in a folder, whose path is returned.
    """
    tokenizer = KINDS[kind]()
    is_pieces = kind == "sentence_piece"
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=["<unk>", *byte_tokens] if is_pieces else [],
        initial_alphabet=[] if is_pieces else sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=12,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    if kind == "trimmed":
        tokenizer.add_tokens([AddedToken(" " * 4, normalized=True), AddedToken("\t\n")])
    content = json.loads(tokenizer.to_str())
    # The trainer marks the byte tokens as special, which those of real models are not.
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] not in byte_tokens
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": specials[0], "eos_token": specials[1]})
    )
    return str(folder)
