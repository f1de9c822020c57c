"""Experiment DAGs of cached, content-hashed steps.

Public names load on first use, so that `import neve` stays a matter of milliseconds.
"""

import importlib

TYPE_CHECKING = False  # what typing.TYPE_CHECKING means to a checker, without importing typing
if TYPE_CHECKING:
    from neve.adopted import adopt as adopt
    from neve.entry import executor_main as executor_main
    from neve.entry import run_steps as run_steps
    from neve.errors import InputError as InputError
    from neve.errors import NeveError as NeveError
    from neve.options import Options as Options
    from neve.options import parse_options as parse_options
    from neve.plan import Plan as Plan
    from neve.plan import PlannedStep as PlannedStep
    from neve.plan import make_plan as make_plan
    from neve.records import read_results as read_results
    from neve.step import ExecutorStep as ExecutorStep
    from neve.step import OutputRef as OutputRef
    from neve.step import Resources as Resources
    from neve.step import output_path_of as output_path_of
    from neve.step import this_output_path as this_output_path
    from neve.step import unhashed as unhashed

_HOMES = {
    "ExecutorStep": "neve.step",
    "Resources": "neve.step",
    "OutputRef": "neve.step",
    "this_output_path": "neve.step",
    "output_path_of": "neve.step",
    "unhashed": "neve.step",
    "adopt": "neve.adopted",
    "executor_main": "neve.entry",
    "run_steps": "neve.entry",
    "Options": "neve.options",
    "parse_options": "neve.options",
    "make_plan": "neve.plan",
    "Plan": "neve.plan",
    "PlannedStep": "neve.plan",
    "NeveError": "neve.errors",
    "InputError": "neve.errors",
    "read_results": "neve.records",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'neve' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
