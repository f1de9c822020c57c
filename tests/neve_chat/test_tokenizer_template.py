"""
The template in a tokenizer's folder, and which built-in ones fit a tokenizer.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from neve_chat.errors import ChatInputError
from neve_chat.templates import fitting_templates, tokenizer_template

MARKED = "{% generation %}{{ m }}{% endgeneration %}"


def tokenizer_folder(source: str, folder: Path, **files: Any) -> str:
    shutil.copytree(source, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if "config" in files:
        config["chat_template"] = files["config"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if "file" in files:
        (folder / "chat_template.jinja").write_text(files["file"])
    for name, text in files.get("named", {}).items():
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)
    return str(folder)


ONE, TWO, THREE = (MARKED + text for text in ("1", "2", "3"))


@pytest.mark.parametrize(
    ("files", "name", "expected"),
    [
        ({"config": ONE}, "default", ONE),
        ({"config": ONE, "file": TWO}, "default", TWO),
        ({"config": [{"name": "default", "template": ONE}]}, "default", ONE),
        (
            {
                "config": [
                    {"name": "default", "template": ONE},
                    {"name": "tool_use", "template": TWO},
                ]
            },
            "tool_use",
            TWO,
        ),
        ({"file": ONE, "named": {"tool_use": TWO}}, "tool_use", TWO),
        ({"config": THREE, "named": {"rag": TWO}}, "rag", TWO),
    ],
)
def test_tokenizer_template_is_the_one_that_transformers_takes(
    tmp_path: Path, tokenizer_path: str, files: dict[str, Any], name: str, expected: str
) -> None:
    """
    Which of a folder's templates is meant is decided as transformers decides it.
    """
    from transformers import AutoTokenizer

    path = tokenizer_folder(tokenizer_path, tmp_path / "t", **files)

    theirs = AutoTokenizer.from_pretrained(path).chat_template

    assert tokenizer_template(path, name).text == expected
    assert (theirs[name] if isinstance(theirs, dict) else theirs) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "named 'default', got none. Pass one that fits this tokenizer: chatml, llama3, marin"),
        (
            {"config": [{"name": "tool_use", "template": ONE}]},
            r"got only 'tool_use'. Pass tokenizer_template\(path, 'tool_use'\) or one that fits",
        ),
        (
            {"config": "{{ messages }}"},
            r"got none, so no token .* \(chatml, llama3, marin, plain, qw",
        ),
        ({"file": "{# " + MARKED + " #}"}, "needs {% generation %}"),
    ],
)
def test_tokenizer_template_refuses_what_would_train_nothing(
    tmp_path: Path, tokenizer_path: str, files: dict[str, Any], message: str
) -> None:
    """
    No template, none of that name, or one without marks: an error that names what fits.
    """
    path = tokenizer_folder(tokenizer_path, tmp_path / "t", **files)

    with pytest.raises(ChatInputError, match=message):
        tokenizer_template(path)


def test_fitting_templates_need_every_marker_as_a_token(
    tmp_path: Path, tokenizer_path: str
) -> None:
    """
    A tokenizer without the tool tokens doesn't fit Delphi; one without markers fits plain only.
    """
    bare = tmp_path / "bare"
    shutil.copytree(tokenizer_path, bare)
    file = bare / "tokenizer.json"
    file.write_text(re.sub(r"<\|(im|eot|start|end_header)", "<|x", file.read_text()))

    assert fitting_templates(tokenizer_path) == (
        "chatml",
        "llama3",
        "marin",
        "plain",
        "qwen3",
        "qwen3_keep_reasoning",
        "qwen3_nothink",
    )
    assert fitting_templates(str(bare)) == ("plain",)
