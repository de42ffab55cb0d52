"""A side of a comparison in a process of its own: a number in, a line of JSON out."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class Side:
    """The process of a side. It ends when its input does."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, number: int) -> Any:
        """What it answers; the benchmark ends if it has died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"a side died: {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        return json.loads(answer)

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
