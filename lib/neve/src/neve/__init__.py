"""Experiment DAGs of cached, content-hashed steps.

Public names load on first use, so that `import neve` stays a matter of milliseconds.
"""

import importlib

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
