"""What the programs of these tests tell the test that started them."""

import json
import sys
from typing import Any, NoReturn

from neve_train.program_end import end_program


def tell(result: Any) -> NoReturn:
    """Print a result as the last line and end the process, like a step's worker does."""
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    end_program()
