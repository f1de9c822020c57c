"""Step: train a Llama-3-style tokenizer on conversations and write a small Snowball's config.json.

The light half of a model made from nothing: everything that data and planning need, and no weight.
`make_snowball_base` adds the weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from neve.errors import InputError

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 cuts text before its merges."""

SPECIAL_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_think|>",
    "<|end_think|>",
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_2|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
"""Special tokens of marin-tokenizer in the order of their ids (128000 to 128010 there)."""

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
_FIRST_RESERVED = 3  # Llama 3.1 numbers its further reserved tokens from 3
_NUM_BYTES = 256
_TEXT_COLUMNS = ("conversations", "messages", "text")
_CORPUS_FILES = ("**/*.parquet", "**/*.jsonl", "**/*.jsonl.gz", "**/*.jsonl.zst")


@dataclass(frozen=True, kw_only=True)
class MakeTokenizerConfig:
    """Text of the tokenizer, and shape of the Snowball that goes with it."""

    corpus: Any
    """Folder or file of conversations the merges are learned from: a path or a step."""
    vocab_size: int = 1024
    """Tokens in all: bytes, merges and special ones, at least 267."""
    hidden_size: int = 128
    """Width of the residual stream."""
    num_layers: int = 4
    """Transformer layers."""
    num_heads: int = 4
    """Query heads, a multiple of num_kv_heads."""
    num_kv_heads: int = 2
    """Key and value heads."""
    head_dim: int = 32
    """Width of one head, a multiple of 4 since rotary embedding turns half of it in pairs."""
    num_experts: int = 8
    """Routed experts of each layer, more than num_experts_per_token."""
    num_experts_per_token: int = 2
    """Routed experts that see each token."""
    expert_width: int = 128
    """Inner width of a routed expert."""
    shared_width: int = 256
    """Inner width of the shared expert, at least 1."""
    max_position_embeddings: int = 1024
    """Longest sequence in tokens."""
    sliding_window: int = 256
    """Tokens that the short-attention layers look back."""
    qk_mult: float = 1.75
    """Factor on normalized queries before attention."""

    def __post_init__(self) -> None:
        smallest = _NUM_BYTES + len(SPECIAL_TOKENS)
        if self.vocab_size < smallest:
            raise InputError(
                f"tokenizer: vocab_size must be at least {smallest} (bytes and special tokens), "
                f"got {self.vocab_size}. Raise it."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("corpus", "qk_mult") and value < 1:
                raise InputError(f"model: {field.name} must be 1 or more, got {value}. Raise it.")
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"model: num_heads must be a multiple of num_kv_heads, got {self.num_heads} "
                f"and {self.num_kv_heads}. Change one."
            )
        if self.num_experts <= self.num_experts_per_token:
            raise InputError(
                "model: num_experts must be greater than num_experts_per_token, got "
                f"{self.num_experts} and {self.num_experts_per_token}. Add experts."
            )
        if self.head_dim % 4:
            raise InputError(
                f"model: head_dim must be a multiple of 4, got {self.head_dim}. Change it."
            )


def make_tokenizer(config: MakeTokenizerConfig, output_path: str) -> dict[str, Any]:
    """The output holds config.json, tokenizer.json, tokenizer_config.json, special_tokens_map.json.

    The same corpus and config give the same bytes.

    Returns:
        Counts: vocab_size, merges (learned tokens), texts (read from the corpus).

    Raises:
        InputError: The corpus holds no text.
    """
    from neve import storage

    texts = list(_corpus_texts(str(config.corpus)))
    if not texts:
        raise InputError(
            f"tokenizer corpus {config.corpus}: must hold text, got none. "
            f"Pass conversations with a column {' or '.join(_TEXT_COLUMNS)}."
        )
    tokenizer = train_tokenizer(texts, config.vocab_size)
    ids = tokenizer.get_vocab()
    model_config = {
        **snowball_hf_config(config),
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
    }
    files = {
        "config.json": _json(model_config),
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": _json(_tokenizer_config(tokenizer, config)),
        "special_tokens_map.json": _json({"bos_token": BOS, "eos_token": EOS}),
    }
    for name, text in files.items():
        storage.write_bytes(storage.join(output_path, name), text.encode())
    num_special = sum(token.special for token in tokenizer.get_added_tokens_decoder().values())
    learned = tokenizer.get_vocab_size() - num_special - _NUM_BYTES
    return {"vocab_size": tokenizer.get_vocab_size(), "merges": learned, "texts": len(texts)}


def train_tokenizer(texts: list[str], vocab_size: int) -> Any:
    """Return a byte-level BPE with exactly `vocab_size` tokens, special ones last.

    A text too small for that many merges leaves the rest to reserved special tokens.

    Args:
        texts: What the merges are learned from, in a fixed order.
        vocab_size: Tokens in all.
    """
    # heavy optional dependency: planning reads this module
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    num_reserved = vocab_size - tokenizer.get_vocab_size() - len(SPECIAL_TOKENS)
    reserved = [
        f"<|reserved_special_token_{_FIRST_RESERVED + index}|>" for index in range(num_reserved)
    ]
    names = [*SPECIAL_TOKENS, *reserved]
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, special=True) for name in names]
    )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A",
                pair=f"{BOS} $A {BOS}:1 $B:1",
                special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
            ),
        ]
    )
    return tokenizer


def snowball_hf_config(config: MakeTokenizerConfig) -> dict[str, Any]:
    """Return config.json of the Snowball: the keys and spellings that Levanter writes."""
    return {
        "architectures": ["GrugMoeForCausalLM"],
        "model_type": "grug_moe",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "sliding_window": config.sliding_window,
        "rms_norm_eps": 1e-5,
        # The 67B uses 0.5 / sqrt(2560) = 0.0098821.
        "initializer_range": round(0.5 / math.sqrt(config.hidden_size), 7),
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_token,
        "moe_intermediate_size": config.expert_width,
        "shared_expert_intermediate_size": config.shared_width,
        "qk_mult": config.qk_mult,
        "grugmoe_attention_mode": "production",
        "grugmoe_artifact_schema_version": 1,
    }


def _tokenizer_config(tokenizer: Any, config: MakeTokenizerConfig) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = tokenizer.get_added_tokens_decoder()
    return {
        "added_tokens_decoder": {
            str(index): {"content": added[index].content, **flags, "special": True}
            for index in sorted(added)
        },
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": config.max_position_embeddings,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _corpus_texts(path: str) -> Iterator[str]:
    from neve_chat.input_files import find_input_files
    from neve_chat.rows import Columns, Piece, read_rows  # lazy: pyarrow and orjson

    for file in find_input_files(path, _CORPUS_FILES):
        for row in read_rows(Piece(file), Columns(optional=_TEXT_COLUMNS)):
            for column in _TEXT_COLUMNS:
                yield from _strings(row.values.get(column))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
