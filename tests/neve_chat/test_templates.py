"""
Built-in templates, names, and the check for generation marks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from neve_chat.errors import ChatInputError
from neve_chat.templates import check_generation_marks, load_template, template_names

MARKED = "{% generation %}{{ m }}{% endgeneration %}"


def test_load_template_gives_every_built_in_with_marks() -> None:
    """
    Each built-in template marks what is trained.
    """
    assert template_names() == ("chatml", "llama3", "marin", "plain")
    for name in template_names():
        check_generation_marks(name, load_template(name).text)


def test_load_template_reads_a_file_verbatim(tmp_path: Path) -> None:
    """
    A file's text is kept byte for byte, for it is the identity.
    """
    path = tmp_path / "own.jinja"
    path.write_bytes(b"{{ 'x' }}\n\n")

    assert load_template(str(path)).text == "{{ 'x' }}\n\n"


def test_load_template_suggests_a_near_name() -> None:
    """
    A misspelt name is answered with the near one and exit code 2.
    """
    with pytest.raises(ChatInputError, match="Did you mean 'marin'") as caught:
        load_template("marine")

    assert caught.value.exit_code == 2


@pytest.mark.parametrize("mark", ["{% generation %}", "{%- generation -%}", "{%+generation%}"])
def test_check_generation_marks_accepts_whitespace_forms(mark: str) -> None:
    """
    Every whitespace form of the tag that Jinja knows counts.
    """
    check_generation_marks("t", mark + "{{ '}} {#' }}x{% endgeneration %}")


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{# " + MARKED + " #}{{ messages }}",
        "{% raw %}" + MARKED + "{% endraw %}",
        "{{ '" + MARKED + "' }}",
        "{% set x = '%} " + MARKED + "' %}",
        "{% generation_x %}{% endgeneration_x %}",
    ],
)
def test_check_generation_marks_refuses_marks_that_do_not_count(text: str) -> None:
    """
    Marks in comments, raw blocks and strings train nothing, so they are refused.
    """
    with pytest.raises(ChatInputError, match="no token would be trained"):
        check_generation_marks("t", text)


def test_templates_import_is_light() -> None:
    """
    A recipe plans without jinja2, tokenizers, pyarrow or tensorstore.
    """
    heavy = {"jinja2", "tokenizers", "pyarrow", "tensorstore", "numpy", "orjson", "zstandard"}
    code = (
        "import sys, steps.tokenize_chat, steps.transform_conversations, neve_chat.schemas;"
        f"print(sorted(set(sys.modules) & {heavy!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
