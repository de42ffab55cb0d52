"""The type checker that jaxtyping puts around the functions of array rooms in tests; an int is a float to it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
