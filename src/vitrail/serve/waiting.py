"""How long work takes and how long a request will wait: fitted while the server runs."""

from dataclasses import dataclass

MEMORY = 0.97  # what is left of a measurement's weight after the next one


@dataclass
class Fit:
    """Seconds of a batch of n images, a + b n, by least squares in which old batches count less and less."""

    weight: float = 0.0
    images: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0

    def add(self, images: int, seconds: float) -> None:
        """Take a measurement in."""
        for name, value in (
            ("weight", 1.0),
            ("images", images),
            ("squares", images * images),
            ("seconds", seconds),
            ("products", images * seconds),
        ):
            setattr(self, name, MEMORY * getattr(self, name) + value)

    def coefficients(self) -> tuple[float, float]:
        """Give a, seconds of any batch, and b, seconds of each image in it; neither is negative."""
        if not self.weight:
            return 0.0, 0.0
        spread = self.weight * self.squares - self.images**2
        if spread > 1e-6 * self.weight * self.squares:  # else all batches had the same size
            b = (self.weight * self.products - self.images * self.seconds) / spread
            a = (self.seconds - b * self.images) / self.weight
            if a >= 0 and b >= 0:
                return a, b
            if a >= 0:
                return self.seconds / self.weight, 0.0
        return 0.0, self.products / self.squares  # through zero

    def predict(self, images: int, most: int) -> float:
        """Give the seconds of so many images in batches of at most `most`."""
        a, b = self.coefficients()
        return -(-images // most) * a + b * images
