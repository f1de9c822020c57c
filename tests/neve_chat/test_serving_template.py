"""The template of an export: without generation marks, and writing the same."""

import re
from pathlib import Path

import pytest
from neve_chat.probes import PROBES
from neve_chat.render import ChatRenderer, TemplateRefusal
from neve_chat.templates import load_template, serving_template, template_names

CASE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
)
# Every way to write a mark, with white space that Jinja treats in its own way around each.
SPACES = """{% for m in messages %}
  <{{ m['role'] }}>
  {%- generation -%}
    {{ m['content'] }}
  {%- endgeneration %}

    {% generation %}
  a{%+ endgeneration +%}
 {% if true %}{% generation %}

  b
  {% endgeneration %}{% endif %}
{% endfor %}
{# {% generation %} #}{{ '{% generation %}' }}{% raw %}{% generation %}{% endraw %}
"""
TEMPLATES = {name: load_template(name).text for name in template_names()}
TEMPLATES |= {"case 059": CASE, "spaces": SPACES}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_serving_template_writes_the_same_and_trains_nothing(name: str) -> None:
    """All probes give the same text, with open headers too; no mark is left to stumble over."""
    text = TEMPLATES[name]
    served = serving_template(text)
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    renderers = [ChatRenderer(each, special_tokens=tokens) for each in (text, served)]
    num_rendered = 0

    for messages, tools in PROBES:
        for is_open in (False, True):
            try:
                trained = renderers[0].render(messages, tools=tools, add_generation_prompt=is_open)
            except TemplateRefusal:
                with pytest.raises(TemplateRefusal):
                    renderers[1].render(messages, tools=tools, add_generation_prompt=is_open)
                continue
            other = renderers[1].render(messages, tools=tools, add_generation_prompt=is_open)
            assert other.text == trained.text
            assert other.spans == ()
            num_rendered += 1

    assert num_rendered > 2
    outside = re.sub(r"\{#.*?#\}|\{% raw %\}.*?\{% endraw %\}|'[^']*'", "", served, flags=re.DOTALL)
    assert not re.search(r"\{%[-+]?\s*(end)?generation", outside)


def test_serving_template_keeps_a_template_without_marks() -> None:
    """Nothing else is touched."""
    text = Path(__file__).read_text(encoding="utf-8").replace("generation", "if")

    assert serving_template(text) == text
