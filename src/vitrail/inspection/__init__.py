"""Look inside a model: what it holds, and what it does with an image. Tensors in, tensors out; drawing is elsewhere."""

from vitrail.inspection.attention import attention_distance, pooled_attention, rollout, rollout_matrix
from vitrail.inspection.bias import Agreement, Moved, patch_agreement, shift_agreement
from vitrail.inspection.layers import Step, layer_similarity, trace_shapes
from vitrail.inspection.predictions import Predictions, open_objective, predict
from vitrail.inspection.weights import (
    Axes,
    Components,
    axis_similarity,
    filter_components,
    filters_of,
    kind_of_positions,
    offset_biases,
    position_similarity,
    relative_similarity,
)

__all__ = ["Agreement", "Axes", "Components", "Moved", "Predictions", "Step", "attention_distance", "axis_similarity"]
__all__ += ["filter_components", "filters_of", "kind_of_positions", "layer_similarity", "offset_biases"]
__all__ += ["open_objective"]
__all__ += ["patch_agreement", "pooled_attention", "position_similarity", "predict", "relative_similarity", "rollout"]
__all__ += ["rollout_matrix", "shift_agreement", "trace_shapes"]
