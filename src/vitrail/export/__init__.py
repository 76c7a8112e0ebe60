"""Models as files that other programs run.

`vitrail.export(...)` is a function too: the package of that name is called like it, whichever was imported first.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Call `vitrail.export.run.export`."""
        from vitrail.export.run import export

        return export(*args, **options)


sys.modules[__name__].__class__ = _Callable
