"""Memory of the CPU: kept once the process has it."""

import ctypes

TRIM, MAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
LARGEST = 1 << 30


def keep_memory() -> bool:
    """Ask glibc not to give freed memory back to the system after every step; tells whether there was one to ask.

    Activations are as large in every step: to get their pages anew takes a tenth of a small model's time.
    """
    try:
        library = ctypes.CDLL(None)
        return bool(library.mallopt(TRIM, LARGEST)) and bool(library.mallopt(MAP, LARGEST))
    except (OSError, AttributeError, TypeError):  # another library, another system
        return False
