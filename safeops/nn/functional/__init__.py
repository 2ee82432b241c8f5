"""torch.nn.functional's functions that can give NaN, made safe, with torch's arguments."""

from .activation import gelu, log_softmax, mish, silu, softmax, softmin
from .attention import scaled_dot_product_attention
from .batch_normalization import batch_norm
from .class_losses import cross_entropy, ctc_loss, nll_loss
from .density_losses import gaussian_nll_loss, poisson_nll_loss
from .distances import cosine_similarity, normalize, pairwise_distance
from .embedding_losses import cosine_embedding_loss, triplet_margin_loss
from .instance_normalization import instance_norm
from .multi_head_attention import multi_head_attention_forward
from .normalization import group_norm, layer_norm, rms_norm
from .pointwise_losses import (
    binary_cross_entropy_with_logits,
    huber_loss,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
    soft_margin_loss,
)
from .probability_losses import binary_cross_entropy, kl_div

__all__ = [
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "gelu",
    "group_norm",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log_softmax",
    "mish",
    "mse_loss",
    "multi_head_attention_forward",
    "nll_loss",
    "normalize",
    "pairwise_distance",
    "poisson_nll_loss",
    "rms_norm",
    "scaled_dot_product_attention",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "triplet_margin_loss",
]
