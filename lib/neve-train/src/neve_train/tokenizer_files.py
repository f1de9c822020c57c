"""Tokenizer and generation files of an export: the training template, and every end-of-turn id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neve import storage
from neve_chat.render import ChatRenderer
from neve_chat.terminator import find_terminator
from neve_chat.tokens import ChatTokenizer

from neve_train.errors import TrainInputError

__all__ = ["end_token_ids", "write_generation_files", "write_tokenizer_files"]

_PORTABLE_CLASS = "PreTrainedTokenizerFast"  # what readers older than transformers 5 know


def end_token_ids(
    tokenizer_path: str, model_path: str, template_text: str, wanted: Sequence[int] = ()
) -> list[int]:
    """Returns the ids at which generation must stop, sorted.

    They are the wanted ones, those of the base model's generation_config.json and config.json, the
    tokenizer's own, and the one that the template trains as the end of a turn.

    Raises:
        TrainInputError: A wanted id is no token, or the template ends a turn with no token.
    """
    tokenizer = ChatTokenizer(tokenizer_path)
    renderer = ChatRenderer(template_text, special_tokens=tokenizer.special_tokens)
    terminator = find_terminator(renderer, tokenizer, "template")
    ids = set(wanted)
    if terminator.ids:
        ids.add(terminator.ids[0])
    for name in ("generation_config.json", "config.json"):
        values = _json_or_empty(model_path, name)
        value = values.get("eos_token_id")
        ids.update([value] if isinstance(value, int) else value or ())
    eos = tokenizer.special_tokens.get("eos_token")
    if eos is not None:
        ids.update(tokenizer.encode([eos])[0][:1])
    outside = sorted(index for index in ids if not 0 <= index < tokenizer.id_limit)
    if outside or not ids:
        raise TrainInputError(
            f"export: end-of-turn ids must be tokens below {tokenizer.id_limit}, got "
            f"{outside or 'none'}. Correct the model's eos_token_ids."
        )
    return sorted(ids)


def write_tokenizer_files(tokenizer_path: str, output_path: str, template_text: str) -> None:
    """Copies the tokenizer, byte for byte, and puts the template into both places readers look."""
    for name in ("tokenizer.json", "special_tokens_map.json"):
        source = storage.join(tokenizer_path, name)
        if storage.exists(source):
            storage.write_bytes(storage.join(output_path, name), storage.read_bytes(source))
    config = _json_or_empty(tokenizer_path, "tokenizer_config.json")
    if "auto_map" not in config and config.get("tokenizer_class", "TokenizersBackend") == (
        "TokenizersBackend"
    ):
        config["tokenizer_class"] = _PORTABLE_CLASS
    config["chat_template"] = template_text
    storage.write_json(storage.join(output_path, "tokenizer_config.json"), config)
    storage.write_bytes(storage.join(output_path, "chat_template.jinja"), template_text.encode())


def write_generation_files(
    model_path: str, output_path: str, tokenizer_path: str, end_ids: list[int], dtype: str
) -> None:
    """Writes generation_config.json with all end ids; ids and weight type go into config.json."""
    tokenizer = ChatTokenizer(tokenizer_path)
    generation = _json_or_empty(model_path, "generation_config.json")
    generation["eos_token_id"] = end_ids
    bos = tokenizer.special_tokens.get("bos_token")
    if bos is not None:
        generation.setdefault("bos_token_id", tokenizer.encode([bos])[0][0])
    storage.write_json(storage.join(output_path, "generation_config.json"), generation)
    path = storage.join(output_path, "config.json")
    config = storage.read_json(path)
    for name in ("begin_suppress_tokens", "decoder_start_token_id"):
        config.pop(name, None)  # of encoder-decoder models; Levanter writes them for every model
    config["dtype"] = dtype
    config["eos_token_id"] = end_ids[0] if len(end_ids) == 1 else end_ids
    storage.write_json(path, config)


def _json_or_empty(folder: str, name: str) -> dict[str, Any]:
    path = storage.join(folder, name)
    return storage.read_json(path) if storage.exists(path) else {}
