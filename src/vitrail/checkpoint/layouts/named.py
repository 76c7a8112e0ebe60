"""The layout that a table of names is: its code is loaded where there is one."""

from vitrail.checkpoint.layouts.base import Layout
from vitrail.config.name_tables import NamesTable

NAME = "names"


def layout_of(table: NamesTable) -> Layout:
    """Give the layout that a table is."""
    from vitrail.checkpoint.layouts.table import make_layout

    return make_layout(table)
