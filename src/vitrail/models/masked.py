"""A Vision Transformer that predicts what is under corrupted patches (Appendix B.1.2)."""

from typing import assert_never

from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.config.objective import MaskedPatches
from vitrail.models.initialize import draw
from vitrail.models.vit import ViT
from vitrail.ops.colors import COLORS, SMALL
from vitrail.ops.masking import corrupt, take


class MaskedPatchModel(nn.Module):
    """An encoder, the mask that stands in the place of patches, and a linear prediction from each corrupted one."""

    def __init__(self, encoder: ViT, objective: MaskedPatches, *, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.config.width
        self.mask = nn.Parameter(draw("objective.mask", (width,), seed))
        self.predictor = nn.Linear(width, outputs_of(encoder.config, objective))
        for parameter in self.predictor.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self,
        images: Float[Tensor, "B C H W"],
        patches: Int64[Tensor, "B M"],
        kinds: Int64[Tensor, "B M"],
        others: Int64[Tensor, "B M"],
    ) -> Float[Tensor, "B M K"]:
        """Predict from each of these patches, whose embeddings are corrupted before positions are added."""
        encoder = self.encoder
        grid = encoder.grid_of(images)
        embeddings = corrupt(encoder.embed_patches(images), self.mask, patches, kinds, others)
        tokens = encoder.encode(encoder.add_positions(embeddings, grid), grid)[:, encoder.config.class_tokens :]
        return self.predictor(take(tokens, patches))


def outputs_of(config: ViTConfig, objective: MaskedPatches) -> int:
    """Count what is predicted of a patch: scores of colours, or values."""
    match objective.target:
        case "mean-color":
            return COLORS
        case "small-colors":
            return SMALL * SMALL * COLORS
        case "pixels":
            return config.stem.stride**2 * config.channels
        case _:
            assert_never(objective.target)
