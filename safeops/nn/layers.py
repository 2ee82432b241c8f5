"""The layers of torch.nn that can give NaN: their forward runs under safe_mode.

Same arguments, attributes, state_dict and repr as in torch, and `isinstance` of its class. What a
docstring says is what swap_ gives as the reason.
"""

from torch import nn

from ._guarded import keeping_statistics, under_safe_mode

__all__ = [
    "GELU",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CosineSimilarity",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LogSoftmax",
    "Mish",
    "MultiheadAttention",
    "PairwiseDistance",
    "RMSNorm",
    "SiLU",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "SyncBatchNorm",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


class Softmax(nn.Softmax):
    """A row that is all -inf is 0, not NaN."""

    forward = under_safe_mode(nn.Softmax.forward)


class LogSoftmax(nn.LogSoftmax):
    """The gradient of a row that is all -inf is 0, not NaN."""

    forward = under_safe_mode(nn.LogSoftmax.forward)


class Softmin(nn.Softmin):
    """A row that is all +inf is 0, not NaN."""

    forward = under_safe_mode(nn.Softmin.forward)


class Softmax2d(nn.Softmax2d):
    """A pixel that is -inf in all channels is 0, not NaN."""

    forward = under_safe_mode(nn.Softmax2d.forward)


class LayerNorm(nn.LayerNorm):
    """Squares do not overflow, and a constant row with eps=0 is 0."""

    forward = under_safe_mode(nn.LayerNorm.forward)


class RMSNorm(nn.RMSNorm):
    """Squares do not overflow, and a row of zeros with eps=0 is 0."""

    forward = under_safe_mode(nn.RMSNorm.forward)


class GroupNorm(nn.GroupNorm):
    """Squares do not overflow, and a constant group with eps=0 is 0."""

    forward = under_safe_mode(nn.GroupNorm.forward)


class InstanceNorm1d(nn.InstanceNorm1d):
    """Squares do not overflow, and a constant channel with eps=0 is 0."""

    forward = under_safe_mode(nn.InstanceNorm1d.forward)


class InstanceNorm2d(nn.InstanceNorm2d):
    """Squares do not overflow, and a constant channel with eps=0 is 0."""

    forward = under_safe_mode(nn.InstanceNorm2d.forward)


class InstanceNorm3d(nn.InstanceNorm3d):
    """Squares do not overflow, and a constant channel with eps=0 is 0."""

    forward = under_safe_mode(nn.InstanceNorm3d.forward)


class MultiheadAttention(nn.MultiheadAttention):
    """A fully masked row attends to nothing and gives 0, not NaN."""

    forward = under_safe_mode(nn.MultiheadAttention.forward)


class TransformerEncoder(nn.TransformerEncoder):
    """A fully masked row attends to nothing and gives 0, not NaN."""

    forward = under_safe_mode(nn.TransformerEncoder.forward)


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """A fully masked row attends to nothing and gives 0, not NaN."""

    forward = under_safe_mode(nn.TransformerEncoderLayer.forward)


class TransformerDecoderLayer(nn.TransformerDecoderLayer):
    """A fully masked row attends to nothing and gives 0, not NaN."""

    forward = under_safe_mode(nn.TransformerDecoderLayer.forward)


class GELU(nn.GELU):
    """-inf gives its limit 0, not NaN."""

    forward = under_safe_mode(nn.GELU.forward)


class SiLU(nn.SiLU):
    """-inf gives its limit 0, not NaN."""

    forward = under_safe_mode(nn.SiLU.forward)


class Mish(nn.Mish):
    """-inf gives its limit 0, not NaN."""

    forward = under_safe_mode(nn.Mish.forward)


class CosineSimilarity(nn.CosineSimilarity):
    """Norms neither overflow nor vanish."""

    forward = under_safe_mode(nn.CosineSimilarity.forward)


class PairwiseDistance(nn.PairwiseDistance):
    """Squares do not overflow, and the distance of duplicates has gradient 0."""

    forward = under_safe_mode(nn.PairwiseDistance.forward)


class BatchNorm1d(nn.BatchNorm1d):
    """A batch with NaN or inf does not reach the running statistics."""

    forward = keeping_statistics(nn.BatchNorm1d.forward)


class BatchNorm2d(nn.BatchNorm2d):
    """A batch with NaN or inf does not reach the running statistics."""

    forward = keeping_statistics(nn.BatchNorm2d.forward)


class BatchNorm3d(nn.BatchNorm3d):
    """A batch with NaN or inf does not reach the running statistics."""

    forward = keeping_statistics(nn.BatchNorm3d.forward)


class SyncBatchNorm(nn.SyncBatchNorm):
    """A batch with NaN or inf does not reach the running statistics."""

    forward = keeping_statistics(nn.SyncBatchNorm.forward)
