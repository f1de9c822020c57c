"""Conversations of a terminal agent, drawn from a seed: `write_corpus(path, rows=8000, seed=0)`.

Each row is a function of the seed and its number alone, so a larger corpus begins with the rows of
a smaller one, on any number of processes. Words follow Zipf's law over a vocabulary of 65,000;
identifiers and paths recur within a conversation as they do in real ones, while numbers, hashes
and times are new every time: a cache of words helps an encoder as much as real text would let it.
"""

import itertools
import json
import math
import multiprocessing
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from neve_chat.pool import num_cores

# Frequent words first: their rank is their weight.
_COMMON = """the to of and a in is that it for on with this as be not are from file we can I have
run at test by if or error need will an all output now so let was should line but when there
which has code using first use check command one no see then path value data name set only what
new they into model directory make function because get out same more here its also type list
script after read write my fix found before which does were other working time result each some
been two still any correct these just up run them want expected than looks current string like
our how between exists process actually however input key since where add install build version
did done change right number version way again works must config failed default missing python
Let's start import class object server while return argument return both create module instead
index call package issue user problem case without possible size empty point large state table
try format next source step program least remove already server option field different solution
over most few several second called given method single task second likely good update local
previous return report content second request row column binary local contains tests memory""".split()  # noqa: SIM905
_ROOTS = """act add adapt align allow append apply approach assert assign attach attempt avoid
back balance band base batch bind bit block board bound branch break bridge broker browse buffer
build bundle byte cache call cap capture case cast catch cell chain change channel char chart check
choice chunk claim clean clear click clock clone close cloud cluster collect color column combine
commit compare compile complete compress compute concern config confirm connect consider consume
contain context control convert copy core correct cost count cover crash create credit cross cursor
cut cycle damage data date dead deal debug declare decode default define delay delete deliver demand
depend deploy derive describe design detail detect develop device digest direct disable disk
display divide document domain draft drain draw drift drive drop dump edge edit effect embed emit
enable encode enter entry error escape event evict exact exchange execute expand expect explain
export express extend extract fact fail fall fetch field file fill filter find finish fit fix
flag flat flow flush focus fold follow force fork form forward frame front gain gate gather generate
grant graph grid group grow guard guess handle hang hash head heap help hold hook host idle image
import include index infer inform inherit inject inline insert inspect install invoke issue iterate
item job join journal judge jump keep kernel key kill label lag lane launch layer lead leak learn
leave level lift limit line link list load local lock log look loop lower mail main manage map mark
mask match matter measure member merge message meter migrate mind mirror mode model module monitor
mount move name need nest net node norm note notice number object observe offer offset open operate
option order output own pack page pair panic parent parse part pass patch path pause perform permit
pick pin pipe place plan plant play plot plug point poll pool port position post prefer prefix
prepare present press print probe process produce profile promise promote prompt propose protect
prove provide proxy prune publish pull push query queue quote raise range rank rate reach react
read reason receive record recover reduce refer reflect refresh regard register relate release
remain remember remote remove render repair repeat replace reply report request require reset
resolve resource respond rest restore result resume retain retry return reuse reveal review revert
ring risk roll root round route row rule run sample save scale scan scatter schedule scope score
search section seek segment select send sense sequence serve session settle shape shard share shell
shift shop show shrink shut side sign signal skip slice slot slow sleep snapshot socket solve
sort sound source space spawn speak split spot stack stage stamp stand start state stay step stick
stop store strategy stream stress strip structure submit suggest supply support suspend swap switch
sync table tag target task teach tell template term test text thread throw tick time token tool touch
trace track trade train transfer transform translate travel treat tree trigger trim trust try tune
turn type update upgrade upload use user validate value vary verify version view visit wait walk
warm warn watch weight wind wire word work worker wrap write yield zone""".split()  # noqa: SIM905
_ENDS = ("", "s", "ed", "ing", "er", "able", "ment", "ion", "ly", "ness")


def _vocabulary() -> list[str]:
    """Returns words, frequent ones first: inflected roots, then compounds of two."""
    order = random.Random("vocabulary")
    inflected = [root + end for root in _ROOTS for end in _ENDS]
    compounds = [a + b + end for a in _ROOTS for b in _ROOTS for end in ("", "s", "ing")]
    order.shuffle(inflected)
    return list(dict.fromkeys([*_COMMON, *inflected, *order.sample(compounds, 60_000)]))


_WORDS = _vocabulary()
_ZIPF = list(itertools.accumulate(1 / (rank + 2.7) ** 1.05 for rank in range(len(_WORDS))))
_WORLD = ["données", "größer", "café", "naïve", "ошибка", "файл не найден", "エラー", "設定ファイル",
          "完成", "数据集", "오류", "→", "✓", "✗", "—", "“quoted”", "≥ 95 %", "🚀", "⚠️", "├──", "└──"]  # fmt: skip
_FOLDERS = ["src", "tests", "lib", "app", "scripts", "data", "build", "include", "docs", "var/log"]
_SUFFIXES = [".py", ".py", ".py", ".c", ".rs", ".ts", ".json", ".yaml", ".toml", ".md", ".sh", ".txt"]  # fmt: skip
_TOOLS = ["ls -la", "cat", "head -n 40", "grep -rn", "sed -n '1,80p'", "python3", "pytest -x -q",
          "git diff", "wc -l", "find . -name", "chmod +x", "tail -f", "curl -s", "gcc -O2 -o"]  # fmt: skip
# The Llama 3.1 tokenizer measures 3.4 on these conversations; pieces overshoot their targets.
_CHARS_PER_TOKEN = 3.2


class _Author:
    """Writes the pieces of one conversation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._names = [self._new_name() for _ in range(50)]
        self._paths = [self._new_path() for _ in range(25)]
        self._has_world = rng.random() < 0.25

    def words(self, count: int) -> list[str]:
        return self.rng.choices(_WORDS, cum_weights=_ZIPF, k=count)

    def _new_name(self) -> str:
        parts = [part.lower() for part in self.words(self.rng.choice((1, 2, 2, 3)))]
        parts = [part.replace("'", "") for part in parts]
        style = self.rng.random()
        if style < 0.7:
            return "_".join(parts)
        return "".join(p.title() for p in parts) if style < 0.9 else "".join(parts).upper()

    def name(self) -> str:
        """Returns an identifier, often one that this conversation has used."""
        return self.rng.choice(self._names) if self.rng.random() < 0.75 else self._new_name()

    def _new_path(self) -> str:
        r = self.rng
        folders = "/".join([r.choice(_FOLDERS), *self.words(r.randint(0, 2))])
        top = r.choice(("app", "home/user", "root", "workspace"))
        return f"/{top}/{folders}/{self._new_name()}{r.choice(_SUFFIXES)}"

    def path(self) -> str:
        """Returns a path, often one that this conversation has used."""
        return self.rng.choice(self._paths) if self.rng.random() < 0.8 else self._new_path()

    def digest(self, length: int) -> str:
        return f"{self.rng.getrandbits(length * 4):0{length}x}"

    def time(self) -> str:
        r = self.rng
        day = f"2026-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
        clock = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}"
        return f"{day} {clock},{r.randint(0, 999):03d}"

    def sentence(self) -> str:
        r = self.rng
        words = self.words(r.randint(5, 24))
        if r.random() < 0.45:
            words[r.randrange(len(words))] = f"`{r.choice((self.name, self.path))()}`"
        if r.random() < 0.2:
            words.insert(r.randrange(len(words)), str(r.randint(0, 10 ** r.randint(1, 6))))
        if self._has_world and r.random() < 0.2:
            words.insert(r.randrange(len(words)), r.choice(_WORLD))
        if len(words) > 12:
            words[len(words) // 2] += ","
        text = " ".join(words)
        return text[0].upper() + text[1:] + r.choice("......:?!")

    def prose(self, chars: int) -> str:
        return _fill(chars, self.sentence, self.rng.choice((" ", " ", "\n")))

    def command(self) -> str:
        r = self.rng
        tail = r.choice((self.path(), f"'{self.name()}' {self.path()}", f"{self.path()} | sort -u"))
        return f"{r.choice(_TOOLS)} {tail}"

    def code_line(self) -> str:
        r, name = self.rng, self.name
        indent = "    " * r.choice((0, 1, 1, 2, 2, 3))
        kind = r.randrange(9)
        if kind == 0:
            return f"\ndef {name()}({name()}: str, {name()}: int = {r.randint(0, 4096)}) -> dict:"
        if kind == 1:
            return f"{indent}if {name()} is not None and len({name()}) > {r.randint(0, 99)}:"
        if kind == 2:
            return f"{indent}for {name()}, {name()} in enumerate({name()}.items()):"
        if kind == 3:
            return f'{indent}print(f"{" ".join(self.words(4))}: {{{name()}:.3f}}")'
        if kind == 4:
            return f"{indent}# {' '.join(self.words(r.randint(4, 12)))}"
        if kind == 5:
            return f"{indent}return {name()}[{name()}] + {r.random():.4f}"
        if kind == 6:
            return f'{indent}{name()} = os.path.join({name()}, "{self.path()}")'
        if kind == 7:
            return f"{indent}raise ValueError('{' '.join(self.words(6))}')"
        return f"{indent}{name()} = self.{name()}({name()}, {name()}={name()})"

    def log_line(self) -> str:
        r = self.rng
        level = r.choice(("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR"))
        words = " ".join(self.words(r.randint(4, 11)))
        return f"{self.time()} {level:7} [{self.name()}:{r.randint(1, 2000)}] {words} id={self.digest(12)}"

    def listing_line(self) -> str:
        r = self.rng
        size = r.randint(0, 10 ** r.randint(2, 8))
        name = self.name() + r.choice(_SUFFIXES)
        return f"-rw-r--r-- {r.randint(1, 9)} root root {size:>9} {self.time()[5:16]} {name}"

    def match_line(self) -> str:
        return f"{self.path()}:{self.rng.randint(1, 3000)}:{self.code_line().strip()}"

    def diff_line(self) -> str:
        return self.rng.choice("   +-") + self.code_line().strip("\n")

    def test_line(self) -> str:
        r = self.rng
        if r.random() < 0.6:
            state = r.choice(("PASSED", "PASSED", "PASSED", "FAILED", "SKIPPED"))
            return (
                f"tests/test_{self.name()}.py::test_{self.name()} {state} [{r.randint(1, 100):>3}%]"
            )
        where = f'  File "{self.path()}", line {r.randint(1, 900)}, in {self.name()}'
        return f"{where}\n    {self.code_line().strip()}"

    def table_line(self) -> str:
        r = self.rng
        numbers = (
            f"{r.uniform(-1, 1) * 10 ** r.randint(0, 5):.{r.randint(0, 5)}f}" for _ in range(5)
        )
        return f"{r.randint(0, 10**6)},{self.name()}," + ",".join(numbers)

    def record(self) -> str:
        r = self.rng
        value = {self.name(): r.randint(0, 10**6), self.name(): " ".join(self.words(5)),
                 "path": self.path(), "id": self.digest(32), self.name(): r.random() < 0.5,
                 self.name(): [round(r.random(), 6), None, self.name()]}  # fmt: skip
        return json.dumps(value, indent=r.choice((None, 2)), ensure_ascii=False)

    def screen(self, chars: int) -> str:
        """Returns what a terminal shows after some commands."""
        kinds = (self.log_line, self.listing_line, self.match_line, self.diff_line, self.test_line,
                 self.table_line, self.record, self.code_line, self.sentence)  # fmt: skip
        text = f"New Terminal Output:\n\nroot@{self.digest(12)}:/app# {self.command()}\n"
        while len(text) < chars:
            room = min(chars - len(text), self.rng.randint(300, 4000))
            text += _fill(room, self.rng.choice(kinds), "\n")
            text += f"\nroot@{self.digest(12)}:/app# {self.command()}\n"
        return text

    def answer(self, chars: int) -> str:
        """Returns thoughts, a plan and commands, or a file written through the shell."""
        r = self.rng
        text = f"<think>\n{self.prose(int(chars * r.uniform(0.2, 0.6)))}\n</think>\n\n{self.sentence()}\n\n```bash\n"
        if r.random() < 0.4:
            body = _fill(max(chars - len(text), 200), self.code_line, "\n")
            text += f"cat > {self.path()} << 'EOF'\n{body}\nEOF\n"
        text += "\n".join(self.command() for _ in range(r.randint(1, 4)))
        return text + "\n```" + (f"\n\n{self.sentence()}" if r.random() < 0.5 else "")


def _fill(chars: int, piece: Callable[[], str], separator: str) -> str:
    pieces, length = [], 0
    while length < chars:
        pieces.append(piece())
        length += len(pieces[-1]) + 1
    return separator.join(pieces)


def make_conversation(seed: int, index: int) -> dict:
    """Returns row `index`: about 2,000 to 20,000 Llama 3 tokens, log-uniform, ends on an answer."""
    rng = random.Random(f"{seed}:{index}")
    author = _Author(rng)
    chars = math.exp(rng.uniform(math.log(2_200), math.log(19_000))) * _CHARS_PER_TOKEN
    system = f"You are an agent in a Linux terminal. {author.prose(rng.randint(200, 1_500))}"
    task = f"{author.prose(rng.randint(300, 1_500))}\n\nWrite the result to {author.path()}."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    rest = chars - len(system) - len(task)
    num_turns = max(5, min(30, int(rest / rng.uniform(700, 3_000))))
    per_turn = rest / num_turns
    for turn in range(num_turns):
        share = rng.uniform(0.25, 0.55)
        messages.append({"role": "assistant", "content": author.answer(int(per_turn * share))})
        if turn < num_turns - 1:
            screen = author.screen(int(per_turn * (1 - share) * rng.uniform(0.5, 1.4)))
            messages.append({"role": "user", "content": screen})
    return {"id": f"{seed}-{index:07d}", "messages": messages}


def _block(arguments: tuple[int, int, int]) -> bytes:
    seed, first, end = arguments
    rows = (make_conversation(seed, index) for index in range(first, end))
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def write_corpus(path: Path, *, rows: int, seed: int = 0) -> None:
    """A JSONL file of `rows` conversations stands at path; memory doesn't grow with rows."""
    blocks = [(seed, first, min(first + 32, rows)) for first in range(0, rows, 32)]
    part = path.with_suffix(".part")
    pool = multiprocessing.get_context("spawn").Pool(num_cores())
    with pool, part.open("wb") as file:
        for block in pool.imap(_block, blocks):
            file.write(block)
    part.rename(path)


def first_lines(path: Path, count: int) -> Iterator[bytes]:
    """Yields the first lines of a file."""
    with path.open("rb") as file:
        yield from itertools.islice(file, count)
