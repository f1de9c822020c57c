"""Identity: what differs, what is equal, what is refused."""

import dataclasses
import datetime
import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from neve import ExecutorStep, InputError, output_path_of, this_output_path, unhashed
from neve.codec import Decoder, Encoder
from neve.identity import Graph, fingerprint_of
from sample_steps import SampleConfig, fail_first, write_files


@dataclasses.dataclass(frozen=True)
class AdamConfig:
    """An optimizer."""

    lr: float = 1e-3


@dataclasses.dataclass(frozen=True)
class LionConfig:
    """Another optimizer with equal fields."""

    lr: float = 1e-3


@dataclasses.dataclass(frozen=True)
class RenamedConfig:
    """A class that has moved and keeps its identity."""

    __fingerprint_id__ = "old-name"
    lr: float = 1e-3


def of(config: Any, **fields: Any) -> str:
    """Return the fingerprint of a step with a config."""
    return fingerprint_of(ExecutorStep(**{"name": "s", "fn": write_files, **fields}, config=config))


SOURCE = ExecutorStep(name="math", fn=write_files, config=SampleConfig(text="math"))
OTHER = ExecutorStep(name="code", fn=write_files, config=SampleConfig(text="code"))

DIFFERENT = {
    "config classes with equal fields": ({"o": AdamConfig()}, {"o": LionConfig()}),
    "int key and str key": ({1: "a"}, {"1": "a"}),
    "named functions": ({"f": write_files}, {"f": fail_first}),
    "bool and int": ({"a": True}, {"a": 1}),
    "int and float": ({"a": 1}, {"a": 1.0}),
    "int and str": ({"a": 1}, {"a": "1"}),
    "None and str": ({"a": None}, {"a": "None"}),
    "values moved between keys": ({"t": "A", "e": "B"}, {"t": "B", "e": "A"}),
    "tuple and list": ((1,), [1]),
    "order of a list": ([1, 2], [2, 1]),
    "set and list": ({1}, [1]),
    "bytes and str": (b"a", "a"),
    "swapped dependencies": ([SOURCE, OTHER], [OTHER, SOURCE]),
    "part of a dependency": (SOURCE / "a", SOURCE / "b"),
    "array dtype": (numpy.zeros(2, "int32"), numpy.zeros(2, "int64")),
    "array shape": (numpy.zeros((2, 1)), numpy.zeros((1, 2))),
    "path and str": (Path("a"), "a"),
    "days": (datetime.timedelta(days=1), datetime.timedelta(days=2)),
    "zero and minus zero": (0.0, -0.0),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_fingerprint_differs_for_different_values(pair: tuple[Any, Any]) -> None:
    """Different meanings have different fingerprints."""
    assert of(pair[0]) != of(pair[1])


EQUAL = {
    "object identity": (["bert", "bert"], ["bert", "bert "[:-1]]),
    "dict order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "set order": ({"x", "y", "z"}, {"z", "x", "y"}),
    "float literal": (0.1, 1e-1),
    "spelling of a reference": (SOURCE / "a" / "b", output_path_of(SOURCE, "a/b")),
    "a step and its output": (SOURCE, output_path_of(SOURCE)),
    "unhashed value": ({"w": unhashed(1)}, {"w": unhashed(8)}),
}


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL.keys())
def test_fingerprint_is_equal_for_equal_values(pair: tuple[Any, Any]) -> None:
    """Equal meanings have one fingerprint."""
    assert of(pair[0]) == of(pair[1])


REFUSED = {
    "lambda": lambda x: x,
    "partial": functools.partial(write_files, 1),
    "object": object(),
    "live array of objects": numpy.array([object()]),
    "bound method": SampleConfig().__init__,
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_fingerprint_refuses_values_without_identity(value: Any) -> None:
    """A value without a canonical form is refused with its field path."""
    with pytest.raises(InputError, match=r"step 's': config\['a'\]\[0\]"):
        of({"a": [value]})


def test_fingerprint_refuses_a_path_under_the_prefix(tmp_path: Path) -> None:
    """A text that starts with the active prefix is refused; without it nothing leaks."""
    step = ExecutorStep(name="s", fn=write_files, config={"input_path": f"{tmp_path}/raw"})

    with pytest.raises(InputError, match=r"config\['input_path'\].*under the prefix"):
        fingerprint_of(step, str(tmp_path))


def test_fingerprint_is_the_same_under_every_prefix(tmp_path: Path) -> None:
    """The prefix is no part of identity."""
    step = ExecutorStep(name="s", fn=write_files, config=[SOURCE / "x", this_output_path("y")])

    found = {fingerprint_of(step, prefix) for prefix in (str(tmp_path), "gs://lab-1", "gs://lab-2")}

    assert len(found) == 1


def test_fingerprint_follows_dependencies() -> None:
    """A change far upstream changes every fingerprint downstream."""

    def chain(text: str) -> str:
        first = ExecutorStep(name="a", fn=write_files, config=SampleConfig(text=text))
        second = ExecutorStep(name="b", fn=write_files, config=[first])
        return of([second / "x"])

    assert chain("1") != chain("2")


def test_fingerprint_keeps_explicit_ids() -> None:
    """fn_id and __fingerprint_id__ stand for names, so that code can move."""
    assert of(1, fn_id="x") == of(1, fn=fail_first, fn_id="x")
    assert of(1, fn_id="x") != of(1)
    encoded = Encoder(identity=True).encode(RenamedConfig(), "config")
    assert encoded == {"$class": ["id:old-name", {"lr": {"$float": "0.001"}}]}


def test_fingerprint_is_independent_of_the_hash_seed() -> None:
    """Other processes with other hash seeds find the same fingerprint."""
    code = (
        "from neve import ExecutorStep\nfrom neve.identity import fingerprint_of\n"
        "from sample_steps import write_files\n"
        "c = {'s': {'x', 'y', 'z', 1, None}, 'f': frozenset('abc')}\n"
        "print(fingerprint_of(ExecutorStep(name='s', fn=write_files, config=c)))"
    )
    found = set()
    for seed in ("0", "1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)}
        found.add(subprocess.check_output([sys.executable, "-c", code], env=env, text=True))

    assert len(found) == 1


def test_graph_joins_equal_steps_and_refuses_cycles() -> None:
    """Equal steps are one node; a circle is an error that names it."""
    again = ExecutorStep(name="math", fn=write_files, config=SampleConfig(text="math"))
    assert len(Graph([SOURCE, again, OTHER]).nodes) == 2

    box: dict[str, Any] = {}
    first = ExecutorStep(name="first", fn=write_files, config=box)
    box["dep"] = ExecutorStep(name="second", fn=write_files, config=[first])
    with pytest.raises(InputError, match="first -> second -> first"):
        Graph([first])


def test_graph_takes_deep_chains() -> None:
    """A chain of 3,000 steps needs no recursion."""
    step = SOURCE
    for index in range(3000):
        step = ExecutorStep(name=f"s{index}", fn=write_files, config=[step])

    assert len(Graph([step]).nodes) == 3001


def test_codec_gives_back_what_it_took() -> None:
    """A config survives step.json: types, nesting, and references as absolute paths."""
    config = {
        "c": SampleConfig(text="t", inputs=(SOURCE / "out.txt", this_output_path("x"))),
        1: (1, 2.5, True, None, b"b", {3}, Path("p"), datetime.timedelta(seconds=3)),
        "d": numpy.dtype("int16"),
        "u": unhashed([1]),
        "f": write_files,
    }
    encoder = Encoder(identity=False, locate=lambda step: {"path": f"/p/{step.name}"})
    tree = encoder.encode(config, "config")
    decoder = Decoder(lambda node: f"{node['path']}/{node['part']}", lambda part: f"/this/{part}")

    assert decoder.decode(tree) == {
        "c": SampleConfig(text="t", inputs=("/p/math/out.txt", "/this/x")),
        1: (1, 2.5, True, None, b"b", {3}, Path("p"), datetime.timedelta(seconds=3)),
        "d": numpy.dtype("int16"),
        "u": [1],
        "f": write_files,
    }
