"""What verbs print: a console and tables in which no figure is ever cut, at a terminal or into a file."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 10_000  # characters: more than any table has, so that none is made to fit; a terminal wraps what is longer


def wide_console() -> "Console":
    """A console whose lines are as long as what they say, whatever the terminal's width."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, width=WIDE)


def plain_table(*heads: str, **options: Any) -> "Table":
    """A table without lines, each column as wide as its longest cell."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, **options)
    for head in heads:
        made.add_column(head, no_wrap=True, overflow="ignore")
    return made
