"""A causal Vision Transformer that predicts every pixel's colour from those before it (iGPT, Chen et al., 2020)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.models.vit import ViT


class NextPixelModel(nn.Module):
    """An encoder whose patches are pixels, and a linear prediction of the next one from each token."""

    def __init__(self, encoder: ViT, palette: Float[Tensor, "K C"]) -> None:
        super().__init__()
        self.encoder = encoder
        self.palette = nn.Parameter(palette, requires_grad=False)  # in the numbers that the encoder reads
        self.first = nn.Parameter(torch.zeros(len(palette)))  # scores of the first pixel, which has none before it
        self.predictor = nn.Linear(encoder.config.width, len(palette))
        for parameter in self.predictor.parameters():
            nn.init.zeros_(parameter)

    def forward(self, colors: Int64[Tensor, "B H W"]) -> Float[Tensor, "B N K"]:
        """Score every colour of the palette for each pixel, row by row, given those before it."""
        encoder = self.encoder
        images = self.palette[colors].permute(0, 3, 1, 2)  # B C H W
        tokens = encoder.tokens(images)  # B N D
        later = self.predictor(tokens[:, :-1])  # B N-1 K
        return torch.cat([self.first.to(later.dtype).expand(len(later), 1, -1), later], dim=1)
