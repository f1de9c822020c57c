"""
A tokenizer of a few hundred tokens with fixed ids, written without training or network.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

SPECIALS = (
    "<|pad|>",
    "<|end_of_text|>",
    "<|begin_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|start_think|>",
    "<|end_think|>",
)
_MERGES = (("o", "k"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ċ", "Ċ"), ("a", "b"), ("ab", "c"))


def build_tokenizer(folder: Path, *, has_auto_bos: bool = False) -> Path:
    """
    Write tokenizer.json and its configs into a folder and return the folder.

    Args:
        folder: created if absent.
        has_auto_bos: put the begin-of-text token in front when special tokens are asked for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {token: index for index, token in enumerate(SPECIALS)}
    for letter in (
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(left + right for left, right in _MERGES),
    ):
        vocab[letter] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
    )
    if has_auto_bos:
        bos = ("<|begin_of_text|>", vocab["<|begin_of_text|>"])
        tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": len(vocab)})
    )
    return folder
