"""The declared forms by name, and a user's own from a file: what `areca fit --form` takes."""

from areca.errors import ConfigError, closest
from areca.laws.declared import (
    B_CRIT,
    BATCH,
    BROKEN,
    CHINCHILLA,
    COMPUTE_FLOOR,
    D_OPT,
    DATA_CONSTRAINED,
    KAPLAN_C,
    KAPLAN_C_MIN,
    KAPLAN_D,
    KAPLAN_N,
    KAPLAN_ND,
    KAPLAN_NS,
    LEARNING_RATE,
    N_OPT,
    SCORE,
)
from areca.laws.forms import Form

FORMS: dict[str, Form] = {
    f.name: f
    for f in (
        CHINCHILLA, KAPLAN_N, KAPLAN_D, KAPLAN_C, KAPLAN_C_MIN, KAPLAN_ND, KAPLAN_NS, B_CRIT, N_OPT, D_OPT,
        DATA_CONSTRAINED, COMPUTE_FLOOR, BROKEN, SCORE, LEARNING_RATE, BATCH,
    )
}  # fmt: skip


def find_form(name: str) -> Form:
    """The declared form of that name, or the one in `file.py:variable`. ConfigError where there is none."""
    if ".py" in name:
        return _from_file(name)
    if name not in FORMS:
        raise ConfigError(
            f"there is no law {name!r}{closest(name, FORMS)}; name one of {', '.join(FORMS)}, or a Form of your own as "
            "file.py:variable."
        )
    return FORMS[name]


def _from_file(where: str) -> Form:
    import runpy
    from pathlib import Path

    file, _, variable = where.partition(":")
    if not Path(file).is_file():
        raise ConfigError(f"there is no file {file}; give a law of your own as file.py:variable.")
    try:
        module = runpy.run_path(file)
    except Exception as error:  # whatever the user's file raises is the user's to read
        raise ConfigError(f"{file} can't be run ({type(error).__name__}: {error}); mend it.") from None
    forms = {k: v for k, v in module.items() if isinstance(v, Form) and not k.startswith("_")}
    if not variable and len(forms) == 1:
        return next(iter(forms.values()))
    if variable not in forms:
        raise ConfigError(
            f"{file} has no Form {variable or 'of one name'!r}{closest(variable, forms)}; "
            f"it has {', '.join(forms) or 'none'}."
        )
    return forms[variable]


__all__ = ["FORMS", "find_form"]
