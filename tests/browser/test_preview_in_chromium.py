"""The page of `neve preview --html` in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from neve_chat.preview_page import page_html
from neve_chat.preview_source import open_source

from tests.browser.chromium import Browser, find_chromium
from tests.neve_chat.tiny_tokenizer import build_tokenizer

pytestmark = pytest.mark.full

TITLE = "rows & <b>more</b>"
HOSTILE = (
    "</div></mark></style></script><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><svg onload=\"document.title='owned'\">"
    "<!-- \x00\x1b[31m \u202e evil é 😀 " + "x" * 300
)
CONTRAST = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
  };
  const names = [".text", "mark", ".text > .special", "mark .special", "mark .escape", "dt", "p"];
  return names.map((name) => {
    const element = document.querySelector(name);
    const pair = [light(getComputedStyle(element).color), light(ground(element))];
    return [name, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05)];
  });
})()
"""
TOKENS_ARE = """
new Promise((done) => {
  const texts = [...document.querySelectorAll(".text")];
  const look = () =>
    texts.every((text) => Boolean(text.querySelector(".token")) === %s)
      ? done(true) : requestAnimationFrame(look);
  look();
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running Chromium."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here, and only root can install Debian's package `chromium`")
    with Browser(program, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A page of conversations that attack it, and their token ids."""
    folder = tmp_path_factory.mktemp("page")
    turns = [(HOSTILE, f"the {HOSTILE}\n\nend"), ("q", "ok"), ("find me", "abc")]
    rows = [
        {
            "id": f"<i>{index}</i>",
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ],
        }
        for index, (question, answer) in enumerate(turns)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(
        str(folder / "rows.jsonl"),
        tokenizer=str(build_tokenizer(folder / "tokenizer")),
        template="chatml",
    )
    shown = list(source.conversations(0, len(rows)))
    html = page_html(title=TITLE, sources=[(source, shown)], count_all=True)
    (folder / "page.html").write_text(html)
    return folder / "page.html", [row.tokens.ids.tolist() for row in shown]


def test_trained_tokens_differ_by_more_than_color(browser: Browser, page) -> None:
    """Trained text has another color, another ground, a line below it and more weight."""
    browser.open(page[0])

    names = ["color", "backgroundColor", "textDecorationLine", "fontWeight"]
    trained, plain = (
        browser.run(
            f"{names}.map((name) => getComputedStyle(document.querySelector('{selector}'))[name])"
        )
        for selector in (".text mark", ".text")
    )

    assert all(a != b for a, b in zip(trained, plain, strict=True)), (trained, plain)
    assert trained[2] == "underline"
    box = browser.run("document.querySelector('.text mark').getBoundingClientRect().toJSON()")
    assert box["width"] > 100
    assert box["height"] > 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser: Browser, page, scheme: str) -> None:
    """Every kind of text stands out from its ground by 4.5 to 1, in light and in dark."""
    browser.open(page[0], scheme=scheme)

    contrasts = browser.run(CONTRAST)

    assert {name: ratio for name, ratio in contrasts if ratio < 4.5} == {}
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 3 * 128) == (scheme == "light")


def test_hostile_conversations_stay_text(browser: Browser, page) -> None:
    """No script or element of the data comes to life, and the console has nothing to say."""
    browser.messages.clear()

    browser.open(page[0])

    assert browser.run("document.title") == TITLE
    assert browser.run("document.querySelectorAll('img, b, .text svg').length") == 0
    assert browser.run("document.scripts.length") == 1
    shown = browser.run("document.querySelector('.text').textContent")
    assert "<script>document.title='owned'</script>" in shown
    assert "\\x00\\x1b[31m \\u202e evil é 😀" in shown
    assert browser.messages == []


def test_page_lets_no_other_script_run(browser: Browser, page) -> None:
    """Even an element that slipped through could do nothing: the policy stops it."""
    browser.open(page[0])
    browser.messages.clear()

    browser.run(
        "document.body.insertAdjacentHTML('beforeend', "
        "`<img src='data:,' onerror=\"document.title='owned'\"><p onclick=\"document.title='owned'\">x</p>`)"
    )
    browser.run("document.body.lastElementChild.click()")
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    assert browser.run("document.title") == TITLE
    assert any("Content Security Policy" in message for message in browser.messages)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("with_ids", [False, True])
def test_page_fits_the_window(browser: Browser, page, width: int, with_ids: bool) -> None:
    """Nothing sticks out to the right on a telephone or a desk, whatever the words' length."""
    browser.open(page[0], width=width)
    if with_ids:
        browser.press("i")
        browser.run(TOKENS_ARE % "true")

    assert browser.run("document.documentElement.scrollWidth") == width
    inside = browser.run(
        "[...document.querySelectorAll('main *')].every((e) => e.getBoundingClientRect().right <= innerWidth)"
    )
    assert inside


def test_token_ids_come_on_demand_and_go(browser: Browser, page) -> None:
    """The button shows every id at its text, with its index; a second press restores the page."""
    browser.open(page[0])
    before = browser.run("document.querySelector('main').innerHTML")

    browser.run("document.querySelector('#ids').click()")
    browser.run(TOKENS_ARE % "true")

    found = browser.run(
        "[...document.querySelectorAll('.text')].map((text) => "
        "[...text.querySelectorAll('.token[data-id]')].map((e) => [e.dataset.id, e.title]))"
    )
    ids = [[int(word) for label, _ in row for word in label.split("+")] for row in found]
    assert ids == page[1]
    assert found[1][1] == [str(page[1][1][1]), f"token 1, id {page[1][1][1]}"]
    browser.run("document.querySelector('#ids').click()")
    browser.run(TOKENS_ARE % "false")
    assert browser.run("document.querySelector('main').innerHTML") == before


def test_presses_in_quick_succession_leave_what_the_button_says(browser: Browser, page) -> None:
    """Ids are unpacked behind the press: a second press while they are leaves the page plain."""
    browser.open(page[0])
    before = browser.run("document.querySelector('main').innerHTML")

    browser.run("document.querySelector('#ids').click(), document.querySelector('#ids').click()")
    browser.run("new Promise((done) => setTimeout(() => done(true), 300))")
    assert browser.run("document.querySelector('main').innerHTML") == before

    browser.run("for (let i = 0; i < 3; i++) document.querySelector('#ids').click()")
    browser.run(TOKENS_ARE % "true")
    browser.run("document.querySelector('#ids').click()")
    browser.run(TOKENS_ARE % "false")
    assert browser.run("document.querySelector('main').innerHTML") == before


def test_keys_filter_and_walk(browser: Browser, page) -> None:
    """The filter keeps the conversations that have the words; j goes to the next one."""
    browser.open(page[0])
    shown = "[...document.querySelectorAll('.conversation')].map((row) => row.checkVisibility())"

    browser.press("/")
    for letter in "find me":
        browser.press(letter)

    assert browser.run(shown) == [False, False, True]
    browser.run("document.querySelector('#filter').blur()")
    browser.press("j")
    assert browser.run("document.activeElement.textContent").startswith("Row 2")


def test_page_reads_without_scripts(browser: Browser, page) -> None:
    """Where scripts are off all conversations are there, and no button that would do nothing."""
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page[0])
        visible = "document.querySelector('%s').checkVisibility()"

        assert browser.run("document.querySelectorAll('.text mark').length") == 3
        assert browser.run(visible % ".text mark")
        assert not browser.run(visible % ".tools")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
