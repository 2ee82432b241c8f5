"""The losses; each family has a file."""

from .class_losses import cross_entropy, ctc_loss, nll_loss
from .density_losses import gaussian_nll_loss, poisson_nll_loss
from .embedding_losses import cosine_embedding_loss, triplet_margin_loss
from .probability_losses import binary_cross_entropy, kl_div

__all__ = [
    "binary_cross_entropy",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "kl_div",
    "nll_loss",
    "poisson_nll_loss",
    "triplet_margin_loss",
]
