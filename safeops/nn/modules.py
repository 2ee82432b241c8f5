"""The modules: torch's own, whose forward runs under safe_mode.

Same arguments, attributes, state_dict and repr, and `isinstance` of torch's class. The first line
of a docstring is what swap_ gives as the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._route import readable
from ..ops._row_formulas import finite
from ..swap.functions import safe_mode

__all__ = [
    "GELU",
    "BCELoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "LayerNorm",
    "LogSoftmax",
    "Mish",
    "MultiheadAttention",
    "NLLLoss",
    "PairwiseDistance",
    "PoissonNLLLoss",
    "RMSNorm",
    "SiLU",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "SyncBatchNorm",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TripletMarginLoss",
]


def under_safe_mode(forward: Callable[..., Any]) -> Callable[..., Any]:
    """This forward, within safe_mode."""

    @functools.wraps(forward)
    def safe_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with safe_mode():
            return forward(self, *args, **kwargs)

    return safe_forward


def _under_safe_mode_but_for_bad_batches(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and a batch that is not finite leaves the buffers, its count among them, as they
    were. (Of those that torch takes together across processes, each process looks at its own.)"""

    @functools.wraps(forward)
    def safe_forward(self: nn.Module, input: Tensor) -> Tensor:
        buffers = list(self.buffers(recurse=False)) if self.training else []
        before = [buffer.clone() for buffer in buffers]
        with safe_mode():
            output = forward(self, input)
        if buffers and not (readable(input) and finite(input)):
            good = input.detach().isfinite().all()
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(torch.where(good, buffer, old))
        return output

    return safe_forward


class Softmax(nn.Softmax):
    """A row that is all -inf is 0, not NaN.

    Else as torch.nn.Softmax.
    """

    forward = under_safe_mode(nn.Softmax.forward)


class LogSoftmax(nn.LogSoftmax):
    """The gradient of a row that is all -inf is 0, not NaN.

    Else as torch.nn.LogSoftmax.
    """

    forward = under_safe_mode(nn.LogSoftmax.forward)


class Softmin(nn.Softmin):
    """A row that is all +inf is 0, not NaN.

    Else as torch.nn.Softmin.
    """

    forward = under_safe_mode(nn.Softmin.forward)


class Softmax2d(nn.Softmax2d):
    """A pixel that is -inf in all channels is 0, not NaN.

    Else as torch.nn.Softmax2d.
    """

    forward = under_safe_mode(nn.Softmax2d.forward)


class LayerNorm(nn.LayerNorm):
    """Squares do not overflow, and a constant row with eps=0 is 0.

    Else as torch.nn.LayerNorm.
    """

    forward = under_safe_mode(nn.LayerNorm.forward)


class RMSNorm(nn.RMSNorm):
    """Squares do not overflow, and a row of zeros with eps=0 is 0.

    Else as torch.nn.RMSNorm.
    """

    forward = under_safe_mode(nn.RMSNorm.forward)


class GroupNorm(nn.GroupNorm):
    """Squares do not overflow, and a constant group with eps=0 is 0.

    Else as torch.nn.GroupNorm.
    """

    forward = under_safe_mode(nn.GroupNorm.forward)


class InstanceNorm1d(nn.InstanceNorm1d):
    """Squares do not overflow, and a constant channel with eps=0 is 0.

    Else as torch.nn.InstanceNorm1d.
    """

    forward = under_safe_mode(nn.InstanceNorm1d.forward)


class InstanceNorm2d(nn.InstanceNorm2d):
    """Squares do not overflow, and a constant channel with eps=0 is 0.

    Else as torch.nn.InstanceNorm2d.
    """

    forward = under_safe_mode(nn.InstanceNorm2d.forward)


class InstanceNorm3d(nn.InstanceNorm3d):
    """Squares do not overflow, and a constant channel with eps=0 is 0.

    Else as torch.nn.InstanceNorm3d.
    """

    forward = under_safe_mode(nn.InstanceNorm3d.forward)


class MultiheadAttention(nn.MultiheadAttention):
    """A fully masked row attends to nothing and gives 0, not NaN.

    Else as torch.nn.MultiheadAttention.
    """

    forward = under_safe_mode(nn.MultiheadAttention.forward)


class TransformerEncoder(nn.TransformerEncoder):
    """A fully masked row attends to nothing and gives 0, not NaN.

    Else as torch.nn.TransformerEncoder.
    """

    forward = under_safe_mode(nn.TransformerEncoder.forward)


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """A fully masked row attends to nothing and gives 0, not NaN.

    Else as torch.nn.TransformerEncoderLayer.
    """

    forward = under_safe_mode(nn.TransformerEncoderLayer.forward)


class TransformerDecoderLayer(nn.TransformerDecoderLayer):
    """A fully masked row attends to nothing and gives 0, not NaN.

    Else as torch.nn.TransformerDecoderLayer.
    """

    forward = under_safe_mode(nn.TransformerDecoderLayer.forward)


class GELU(nn.GELU):
    """-inf gives its limit 0, not NaN.

    Else as torch.nn.GELU.
    """

    forward = under_safe_mode(nn.GELU.forward)


class SiLU(nn.SiLU):
    """-inf gives its limit 0, not NaN.

    Else as torch.nn.SiLU.
    """

    forward = under_safe_mode(nn.SiLU.forward)


class Mish(nn.Mish):
    """-inf gives its limit 0, not NaN.

    Else as torch.nn.Mish.
    """

    forward = under_safe_mode(nn.Mish.forward)


class CosineSimilarity(nn.CosineSimilarity):
    """Norms neither overflow nor vanish.

    Else as torch.nn.CosineSimilarity.
    """

    forward = under_safe_mode(nn.CosineSimilarity.forward)


class PairwiseDistance(nn.PairwiseDistance):
    """Squares do not overflow, and the distance of duplicates has gradient 0.

    Else as torch.nn.PairwiseDistance.
    """

    forward = under_safe_mode(nn.PairwiseDistance.forward)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """A batch whose targets are all ignored has loss 0, not NaN.

    Else as torch.nn.CrossEntropyLoss.
    """

    forward = under_safe_mode(nn.CrossEntropyLoss.forward)


class NLLLoss(nn.NLLLoss):
    """A batch whose targets are all ignored has loss 0, not NaN.

    Else as torch.nn.NLLLoss.
    """

    forward = under_safe_mode(nn.NLLLoss.forward)


class BCELoss(nn.BCELoss):
    """Gradients at probabilities 0 and 1 are finite in half precision too.

    Else as torch.nn.BCELoss.
    """

    forward = under_safe_mode(nn.BCELoss.forward)


class KLDivLoss(nn.KLDivLoss):
    """0 * log 0 is 0, and its gradient is finite.

    Else as torch.nn.KLDivLoss.
    """

    forward = under_safe_mode(nn.KLDivLoss.forward)


class GaussianNLLLoss(nn.GaussianNLLLoss):
    """A squared error over a small variance does not overflow.

    Else as torch.nn.GaussianNLLLoss.
    """

    forward = under_safe_mode(nn.GaussianNLLLoss.forward)


class PoissonNLLLoss(nn.PoissonNLLLoss):
    """exp does not overflow, and log is guarded at 0 and below.

    Else as torch.nn.PoissonNLLLoss.
    """

    forward = under_safe_mode(nn.PoissonNLLLoss.forward)


class CTCLoss(nn.CTCLoss):
    """A target that does not fit its input has loss 0, not inf.

    Else as torch.nn.CTCLoss.
    """

    forward = under_safe_mode(nn.CTCLoss.forward)


class CosineEmbeddingLoss(nn.CosineEmbeddingLoss):
    """Norms neither overflow nor vanish.

    Else as torch.nn.CosineEmbeddingLoss.
    """

    forward = under_safe_mode(nn.CosineEmbeddingLoss.forward)


class TripletMarginLoss(nn.TripletMarginLoss):
    """Squares do not overflow, and the distance of duplicates has gradient 0.

    Else as torch.nn.TripletMarginLoss.
    """

    forward = under_safe_mode(nn.TripletMarginLoss.forward)


class BatchNorm1d(nn.BatchNorm1d):
    """A batch with NaN or inf does not reach the running statistics.

    Else as torch.nn.BatchNorm1d.
    """

    forward = _under_safe_mode_but_for_bad_batches(nn.BatchNorm1d.forward)


class BatchNorm2d(nn.BatchNorm2d):
    """A batch with NaN or inf does not reach the running statistics.

    Else as torch.nn.BatchNorm2d.
    """

    forward = _under_safe_mode_but_for_bad_batches(nn.BatchNorm2d.forward)


class BatchNorm3d(nn.BatchNorm3d):
    """A batch with NaN or inf does not reach the running statistics.

    Else as torch.nn.BatchNorm3d.
    """

    forward = _under_safe_mode_but_for_bad_batches(nn.BatchNorm3d.forward)


class SyncBatchNorm(nn.SyncBatchNorm):
    """A batch with NaN or inf does not reach the running statistics.

    Else as torch.nn.SyncBatchNorm.
    """

    forward = _under_safe_mode_but_for_bad_batches(nn.SyncBatchNorm.forward)
