"""Look inside a model: what it holds, and what it does with an image. Tensors in, tensors out; drawing is elsewhere."""

from vitrail.inspection.attention import attention_distance as attention_distance
from vitrail.inspection.attention import pooled_attention as pooled_attention
from vitrail.inspection.attention import rollout as rollout
from vitrail.inspection.attention import rollout_matrix as rollout_matrix
from vitrail.inspection.bias import Agreement as Agreement
from vitrail.inspection.bias import Moved as Moved
from vitrail.inspection.bias import patch_agreement as patch_agreement
from vitrail.inspection.bias import shift_agreement as shift_agreement
from vitrail.inspection.layers import Step as Step
from vitrail.inspection.layers import layer_similarity as layer_similarity
from vitrail.inspection.layers import trace_shapes as trace_shapes
from vitrail.inspection.predictions import Predictions as Predictions
from vitrail.inspection.predictions import open_objective as open_objective
from vitrail.inspection.predictions import predict as predict
from vitrail.inspection.weights import Axes as Axes
from vitrail.inspection.weights import Components as Components
from vitrail.inspection.weights import axis_similarity as axis_similarity
from vitrail.inspection.weights import filter_components as filter_components
from vitrail.inspection.weights import filters_of as filters_of
from vitrail.inspection.weights import kind_of_positions as kind_of_positions
from vitrail.inspection.weights import position_similarity as position_similarity
from vitrail.inspection.weights import relative_similarity as relative_similarity
