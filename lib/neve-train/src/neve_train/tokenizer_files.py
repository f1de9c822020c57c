"""Tokenizer and generation files of an export: the training template, and every end-of-turn id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from neve import storage
from neve_chat.probes import PROBES
from neve_chat.render import ChatRenderer, TemplateRefusal
from neve_chat.templates import TRAINING_TEMPLATE_FILE, serving_template
from neve_chat.terminator import find_terminator
from neve_chat.tokens import ChatTokenizer

from neve_train.errors import TrainInputError

__all__ = ["check_template", "end_token_ids", "write_config_files", "write_tokenizer_files"]

_PORTABLE_CLASS = "PreTrainedTokenizerFast"  # what readers older than transformers 5 know
_TOKENIZER_FILES = (
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


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


def check_template(template_text: str, caches: Sequence[str]) -> None:
    """Refuses a template that isn't the one the caches were made with.

    Raises:
        TrainInputError: A cache notes another template.
    """
    digest = hashlib.sha256(template_text.encode("utf-8")).hexdigest()
    for cache in caches:
        noted = _json_or_empty(cache, "stats.json").get("template_digest", digest)
        if noted != digest:
            raise TrainInputError(
                f"export: the template must be the one of the tokens in {cache}, got sha256 "
                f"{digest[:12]} and {noted[:12]} there. Pass the template of the training."
            )


def write_tokenizer_files(tokenizer_path: str, output_path: str, template_text: str) -> None:
    """Copies the tokenizer, byte for byte, and puts the template into both places readers look.

    There its generation marks are comments, which any reader knows; training_chat_template.jinja
    keeps them.
    """
    for name in _TOKENIZER_FILES:
        source = storage.join(tokenizer_path, name)
        if storage.exists(source):
            storage.write_bytes(storage.join(output_path, name), storage.read_bytes(source))
    config = _json_or_empty(tokenizer_path, "tokenizer_config.json")
    if "auto_map" not in config and config.get("tokenizer_class", "TokenizersBackend") == (
        "TokenizersBackend"
    ):
        config["tokenizer_class"] = _PORTABLE_CLASS
    served = _serving_template(template_text, ChatTokenizer(tokenizer_path))
    config["chat_template"] = served
    storage.write_json(storage.join(output_path, "tokenizer_config.json"), config)
    storage.write_bytes(storage.join(output_path, "chat_template.jinja"), served.encode())
    training = storage.join(output_path, TRAINING_TEMPLATE_FILE)
    storage.write_bytes(training, template_text.encode())


def write_config_files(
    model_path: str, output_path: str, tokenizer_path: str, end_ids: list[int], dtype: str
) -> None:
    """Writes config.json and generation_config.json: the base model's, with all end ids and the type."""
    tokenizer = ChatTokenizer(tokenizer_path)
    generation = _json_or_empty(model_path, "generation_config.json")
    generation["eos_token_id"] = end_ids
    bos = tokenizer.special_tokens.get("bos_token")
    if bos is not None:
        generation.setdefault("bos_token_id", tokenizer.encode([bos])[0][0])
    storage.write_json(storage.join(output_path, "generation_config.json"), generation)
    config = _json_or_empty(model_path, "config.json")
    config.pop("torch_dtype", None)  # the older name of dtype
    config["dtype"] = dtype
    config["eos_token_id"] = end_ids[0] if len(end_ids) == 1 else end_ids
    storage.write_json(storage.join(output_path, "config.json"), config)


def _serving_template(template_text: str, tokenizer: ChatTokenizer) -> str:
    """Returns the template without marks, seen to write what the training template writes."""
    served = serving_template(template_text)
    renderers = [
        ChatRenderer(text, special_tokens=tokenizer.special_tokens)
        for text in (template_text, served)
    ]
    for messages, tools in PROBES:
        for is_open in (False, True):
            trained, other = (_text(renderer, messages, tools, is_open) for renderer in renderers)
            if trained != other:
                raise TrainInputError(
                    "export: the template must write the same without its generation marks, got "
                    f"{other[:200]!r} instead of {trained[:200]!r}. Set no variable inside a mark."
                )
    return served


def _text(renderer: ChatRenderer, messages: Any, tools: Any, is_open: bool) -> str:
    try:
        return renderer.render(messages, tools=tools, add_generation_prompt=is_open).text
    except TemplateRefusal as refusal:
        return f"refused: {refusal}"


def _json_or_empty(folder: str, name: str) -> dict[str, Any]:
    path = storage.join(folder, name)
    return storage.read_json(path) if storage.exists(path) else {}
