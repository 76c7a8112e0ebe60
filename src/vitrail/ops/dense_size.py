"""The size at which predicted masks are compared with known ones."""

FINEST = 1 << 17  # pixels of an image that predicted masks are compared on, at most


def compared_at(size: tuple[int, int], least: tuple[int, int]) -> tuple[int, int]:
    """Give the size at which masks of a size are compared: their own, or halves of it where that is much."""
    while size[0] * size[1] > FINEST and min(size[0] // 2 - least[0], size[1] // 2 - least[1]) >= 0:
        size = size[0] // 2, size[1] // 2
    return size
