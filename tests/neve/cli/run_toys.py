"""Runs variants of the toy recipe with the real worker: 3 numbers, 4 numbers, a failure."""

import os
import sys

import toy_recipe
from neve import records, storage
from neve.plan import make_plan
from neve.stepdoc import make_step_document
from neve.supervisor import main


def run(prefix: str, **values: float) -> None:
    """Run every step that is not complete."""
    plan = make_plan(toy_recipe.build(**values), prefix)
    for row in plan.rows:
        if row.action != "hit":
            document = make_step_document(plan.graph, row.identity, row.code)
            storage.write_json(records.neve_path(row.output_path, "step.json"), document)
            main([row.output_path])


if __name__ == "__main__":
    prefix = os.environ["MARIN_PREFIX"]
    run(prefix)
    os.utime(records.state_path(make_plan(toy_recipe.build(), prefix).rows[1].output_path), (1, 1))
    run(prefix, count=4, seq_len=256)
    run(prefix, count=4, seq_len=256, scale=-1.0)
    sys.exit(0)
