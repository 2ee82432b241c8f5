"""The losses of torch.nn that can give NaN: their forward runs under safe_mode.

Same arguments, attributes, state_dict and repr as in torch, and `isinstance` of its class. What a
docstring says is what swap_ gives as the reason.
"""

from torch import nn

from ._guarded import under_safe_mode

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
]


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """A batch whose targets are all ignored has loss 0, not NaN."""

    forward = under_safe_mode(nn.CrossEntropyLoss.forward)


class NLLLoss(nn.NLLLoss):
    """A batch whose targets are all ignored has loss 0, not NaN."""

    forward = under_safe_mode(nn.NLLLoss.forward)


class BCELoss(nn.BCELoss):
    """Gradients at probabilities 0 and 1 are finite in half precision too."""

    forward = under_safe_mode(nn.BCELoss.forward)


class KLDivLoss(nn.KLDivLoss):
    """0 * log 0 is 0, and its gradient is finite."""

    forward = under_safe_mode(nn.KLDivLoss.forward)


class GaussianNLLLoss(nn.GaussianNLLLoss):
    """A squared error over a small variance does not overflow."""

    forward = under_safe_mode(nn.GaussianNLLLoss.forward)


class PoissonNLLLoss(nn.PoissonNLLLoss):
    """exp does not overflow, and log is guarded at 0 and below."""

    forward = under_safe_mode(nn.PoissonNLLLoss.forward)


class CTCLoss(nn.CTCLoss):
    """A target that does not fit its input has loss 0, not inf."""

    forward = under_safe_mode(nn.CTCLoss.forward)


class CosineEmbeddingLoss(nn.CosineEmbeddingLoss):
    """Norms neither overflow nor vanish."""

    forward = under_safe_mode(nn.CosineEmbeddingLoss.forward)


class TripletMarginLoss(nn.TripletMarginLoss):
    """Squares do not overflow, and the distance of duplicates has gradient 0."""

    forward = under_safe_mode(nn.TripletMarginLoss.forward)


class MSELoss(nn.MSELoss):
    """The mean of nothing is 0, and squares do not overflow."""

    forward = under_safe_mode(nn.MSELoss.forward)


class L1Loss(nn.L1Loss):
    """The mean of nothing is 0, not NaN."""

    forward = under_safe_mode(nn.L1Loss.forward)


class SmoothL1Loss(nn.SmoothL1Loss):
    """The mean of nothing is 0, not NaN."""

    forward = under_safe_mode(nn.SmoothL1Loss.forward)


class HuberLoss(nn.HuberLoss):
    """The mean of nothing is 0, not NaN."""

    forward = under_safe_mode(nn.HuberLoss.forward)


class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """The mean of nothing is 0, not NaN."""

    forward = under_safe_mode(nn.BCEWithLogitsLoss.forward)


class SoftMarginLoss(nn.SoftMarginLoss):
    """exp does not overflow, and the mean of nothing is 0."""

    forward = under_safe_mode(nn.SoftMarginLoss.forward)
