"""What an export says about the end of a turn and its template, from a tokenizer of fixed ids."""

import json
from pathlib import Path
from typing import Any

import pytest
from neve_chat.render import ChatRenderer
from neve_chat.templates import load_template
from neve_train.errors import TrainInputError
from neve_train.tokenizer_files import (
    end_token_ids,
    write_config_files,
    write_tokenizer_files,
)

from tests.neve_chat.tiny_tokenizer import SPECIALS, build_tokenizer

END_OF_TEXT, IM_END, EOT = (
    SPECIALS.index(f"<|{name}|>") for name in ("end_of_text", "im_end", "eot_id")
)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
)
"""The training template of case 059."""

BASE_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def exported(folder: Path, template: str, **files: dict[str, Any]) -> Path:
    """Writes all but the weights of an export, from a model with these files."""
    tokenizer = build_tokenizer(folder / "tokenizer")
    for name, values in files.items():
        (folder / "tokenizer" / f"{name}.json").write_text(json.dumps(values))
    model, output = str(tokenizer), str(folder / "hf")
    ids = end_token_ids(model, model, template)
    write_tokenizer_files(model, output, template)
    write_config_files(model, output, model, ids, "bfloat16")
    return folder / "hf"


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def test_every_end_id_of_the_source_is_exported_with_its_sampling(tmp_path: Path) -> None:
    """Case 057: the tokenizer's own end of text never takes the place of the end of a turn."""
    wanted = {"eos_token_id": [1, 3, 7], "temperature": 0.6, "top_p": 0.9, "do_sample": True}

    folder = exported(
        tmp_path,
        load_template("marin").text,
        config={"eos_token_id": EOT, "bos_token_id": 2},
        generation_config=wanted,
    )

    assert EOT in read(folder, "config")["eos_token_id"]
    generation = read(folder, "generation_config")
    assert generation == wanted | {"bos_token_id": 2}


def test_the_end_that_the_template_renders_is_exported_for_a_base_model(tmp_path: Path) -> None:
    """Case 057: a base model that knows the end of a text only, trained on ChatML."""
    folder = exported(tmp_path, CHATML, config={"eos_token_id": END_OF_TEXT})

    for name in ("config", "generation_config"):
        assert read(folder, name)["eos_token_id"] == [END_OF_TEXT, IM_END]


@pytest.mark.parametrize("base", [None, BASE_TEMPLATE])
def test_the_training_template_is_served_whatever_the_base_had(
    tmp_path: Path, base: str | None
) -> None:
    """Case 059: in both places, without its marks, rendering the text of the training."""
    tokenizer = build_tokenizer(tmp_path / "tokenizer")
    settings = read(tokenizer, "tokenizer_config") | {"tokenizer_class": "TokenizersBackend"}
    if base is not None:
        (tokenizer / "chat_template.jinja").write_text(base)
        settings["chat_template"] = base
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    output = tmp_path / "hf"

    write_tokenizer_files(str(tokenizer), str(output), CHATML)

    served = (output / "chat_template.jinja").read_text()
    assert served == read(output, "tokenizer_config")["chat_template"]
    assert read(output, "tokenizer_config")["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "{% generation %}" not in served
    messages = [
        {"role": role, "content": text}
        for role, text in (
            ("user", "Hi"),
            ("assistant", "ok"),
            ("user", "bye"),
            ("assistant", "abc"),
        )
    ]
    texts = [ChatRenderer(text).render(messages).text for text in (CHATML, served)]
    assert texts[0] == texts[1]
    assert texts[0].endswith("<|im_start|>assistant\nabc<|im_end|>\n")


def test_an_end_id_that_is_no_token_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(TrainInputError, match=r"must be tokens below \d+, got \[128009\]"):
        exported(tmp_path, CHATML, config={"eos_token_id": 128_009})
    assert not (tmp_path / "hf").exists()
