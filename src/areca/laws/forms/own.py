"""A user's own form from a file, FILE.py:NAME: what is looked for, and what each thing that can go wrong says."""

import traceback
from pathlib import Path
from typing import Any

from areca.errors import ConfigError, closest
from areca.laws.forms import Form


def form_from_file(where: str) -> Form:
    """The Form NAME of `FILE.py:NAME`, or the only one of `FILE.py`. The file is run.

    Raises ConfigError: no file, a file that stops, no Form in it, several and no name, another thing of that name.
    """
    file, _, name = where.partition(":")
    if not Path(file).is_file():
        raise ConfigError(
            f"--form {where}: there is no file {file}; give a Python file that makes a Form, as FILE.py:NAME."
        )
    made = _run(file)
    forms = {k: v for k, v in made.items() if isinstance(v, Form) and not k.startswith("_")}
    if not forms:
        raise ConfigError(
            f"--form {where}: {file} makes no Form; write {name or 'NAME'} = Form(...) in it, with Form from "
            f"areca.laws (docs/fit-my-runs.md has an example), and say --form {file}:{name or 'NAME'}."
        )
    options = " or ".join(f"--form {file}:{known}" for known in forms)
    if not name:
        if len({id(form) for form in forms.values()}) > 1:
            raise ConfigError(f"--form {where}: {file} makes {len(forms)} Forms; say which, {options}.")
        return next(iter(forms.values()))
    if name in forms:
        return forms[name]
    if name in made and not name.startswith("_"):
        kind = type(made[name]).__name__
        raise ConfigError(
            f"--form {where}: {name} in {file} is of the type {kind} and no Form as areca.laws.Form makes; "
            f"say {options}."
        )
    raise ConfigError(f"--form {where}: {file} makes no Form {name!r}{closest(name, forms)}; say {options}.")


def _run(file: str) -> dict[str, Any]:
    import runpy

    try:
        return runpy.run_path(file)
    except KeyboardInterrupt:
        raise
    except ConfigError as error:  # a sentence of ours, about the Form
        raise ConfigError(f"{file}{_line(error, file)}: {error}") from None
    except BaseException as error:  # whatever the file raises, SystemExit too, is its writer's to read
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"{file} stops{_line(error, file)} with {type(error).__name__}{f' ({said})' if said else ''}; mend it: the "
            "file is run to get its Form."
        ) from None


def _line(error: BaseException, file: str) -> str:
    """ " in line 3" of the file, the deepest that the error came through, or nothing."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f" in line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f" in line {lines[-1]}" if lines else ""


__all__ = ["form_from_file"]
