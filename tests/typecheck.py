"""What checks shapes and types under pytest: beartype, with whole numbers where a float is asked for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
