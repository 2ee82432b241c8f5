"""What detect has to say of each sick program: read off the program by hand.

operation, its direction, the module that runs it, the cause, and the beginning of the line.
"""

from typing import NamedTuple

from safeops.diagnose.detection.causes import (
    DIVISION,
    DOMAIN,
    EMPTY,
    HALF_OVERFLOW,
    INPUT,
    LOG,
    MASKED,
    OVERFLOW,
    SLOPE,
    SQRT,
    UNDEFINED,
)


class Expected(NamedTuple):
    op: str
    direction: str
    module: str
    cause: str
    line: str


EXPECTED = {
    "log_of_softmax": Expected(
        "log", "forward", "", LOG, "return -torch.log(p[torch.arange(len(y)), y]).mean()"
    ),
    "cross_entropy_by_hand": Expected("exp", "forward", "", OVERFLOW, "e = torch.exp(self.net(x))"),
    "focal_loss": Expected(
        "PowBackward0",
        "backward",
        "",
        SLOPE,
        "return -((1 - log_p.exp()) ** self.gamma * log_p).mean()",
    ),
    "ranking_loss": Expected(
        "log", "forward", "", LOG, "return -torch.log(torch.sigmoid(margin)).mean()"
    ),
    "binary_cross_entropy_by_hand": Expected(
        "log", "forward", "", LOG, "return -(y * torch.log(p) + (1 - y) * torch.log(1 - p))."
    ),
    "discriminator": Expected(
        "log", "forward", "", LOG, "return -(torch.log(d_real) + torch.log(1 - d_fake)).mean"
    ),
    "softplus_by_hand": Expected(
        "exp", "forward", "", OVERFLOW, "return torch.log(1 + torch.exp(-sign * self.net(x).squee"
    ),
    "log_cosh": Expected(
        "cosh", "forward", "", OVERFLOW, "return torch.log(torch.cosh(self.net(x).squeeze(-1) - y)"
    ),
    "soft_margin_loss": Expected(
        "soft_margin_loss",
        "forward",
        "",
        OVERFLOW,
        "return F.soft_margin_loss(self.net(x).squeeze(-1), 2 * y",
    ),
    "noisy_or": Expected("log1p", "forward", "", LOG, "negative = torch.log1p(-p).sum(-1)"),
    "dice": Expected(
        "div", "forward", "", DIVISION, "return (1 - 2 * overlap / (p.sum(-1) + target.sum(-1)))."
    ),
    "box_iou": Expected("div", "forward", "", DIVISION, "return (1 - inner / union).mean()"),
    "mean_over_mask": Expected("mean", "forward", "", EMPTY, "return error[mask].mean()"),
    "sum_over_count": Expected(
        "div", "forward", "", DIVISION, "return (error * mask).sum() / mask.sum()"
    ),
    "mse_of_selection": Expected(
        "mse_loss", "forward", "", EMPTY, "return F.mse_loss(self.net(x).squeeze(-1)[mask], y[mask]"
    ),
    "all_ignored": Expected(
        "nll_loss_forward",
        "forward",
        "",
        EMPTY,
        "return F.cross_entropy(self.net(x), y, ignore_index=-100",
    ),
    "no_class_weight": Expected(
        "nll_loss_forward", "forward", "loss", EMPTY, "return self.loss(self.net(x), y)"
    ),
    "ctc": Expected(
        "_ctc_loss", "forward", "", DOMAIN, "return F.ctc_loss(log_p, targets, frames, letters)"
    ),
    "kl_by_hand": Expected(
        "log", "forward", "", LOG, "return (teacher * (teacher.log() - log_q)).sum(-1).mean("
    ),
    "kl_div": Expected(
        "mul", "forward", "", UNDEFINED, 'return F.kl_div(log_q, teacher, reduction="batchmean")'
    ),
    "logit_of_certainty": Expected(
        "logit", "forward", "", DOMAIN, "return ((self.net(x).squeeze(-1) - torch.logit(teacher))"
    ),
    "entropy_bonus": Expected("log", "forward", "", LOG, "entropy = -(p * torch.log(p)).sum(-1)"),
    "policy_gradient": Expected(
        "log", "forward", "", LOG, "return -p.gather(1, action[:, None]).log().mean()"
    ),
    "advantages": Expected(
        "std", "forward", "", EMPTY, "advantage = (rewards - rewards.mean()) / (rewards.std() "
    ),
    "mixture_density": Expected(
        "log", "forward", "", LOG, "return -torch.log((share * density).sum(-1)).mean()"
    ),
    "log_variance": Expected(
        "div", "forward", "", DIVISION, "return 0.5 * (log_variance + error / torch.exp(log_varia"
    ),
    "precision_weighted": Expected(
        "exp", "forward", "", OVERFLOW, "return 0.5 * (log_variance + torch.exp(-log_variance) * "
    ),
    "poisson_rate": Expected(
        "exp", "forward", "", OVERFLOW, "return (torch.exp(log_rate) - counts * log_rate).mean()"
    ),
    "poisson_nll_loss": Expected(
        "exp", "forward", "", OVERFLOW, "return F.poisson_nll_loss(self.net(x).squeeze(-1) + offs"
    ),
    "variational_encoder": Expected(
        "log", "forward", "", LOG, "prior = (deviation**2 + mean**2 - 1) / 2 - torch.log(dev"
    ),
    "boltzmann_machine": Expected(
        "exp", "forward", "", OVERFLOW, "energy = -torch.log(1 + torch.exp(hidden)).sum(-1)"
    ),
    "unit_vector": Expected(
        "div", "forward", "", DIVISION, "return F.cross_entropy(4 * e / e.norm(dim=-1, keepdim=Tr"
    ),
    "contrastive": Expected(
        "SqrtBackward0",
        "backward",
        "",
        SLOPE,
        "d = ((self.net(a) - self.net(b)) ** 2).sum(-1).sqrt()",
    ),
    "scaling": Expected(
        "sqrt", "forward", "", SQRT, "d = torch.sqrt(square[:, None] + square[None] - 2 * e @ "
    ),
    "cosine_by_hand": Expected(
        "div", "forward", "", DIVISION, "cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim="
    ),
    "ranges": Expected(
        "HypotBackward0",
        "backward",
        "",
        SLOPE,
        "return ((torch.hypot(place[:, 0], place[:, 1]) - wanted)",
    ),
    "poincare": Expected(
        "AcoshBackward0",
        "backward",
        "",
        SLOPE,
        "return ((torch.acosh(1 + 2 * square / room) - wanted) **",
    ),
    "graph_convolution": Expected("pow", "forward", "", DIVISION, "scale = edges.sum(-1) ** -0.5"),
    "angle": Expected(
        "acos", "forward", "", DOMAIN, "return ((torch.acos((a * b).sum(-1)) - wanted) ** 2).mea"
    ),
    "fisher_z": Expected(
        "atanh", "forward", "", DOMAIN, "return ((torch.atanh(r) - wanted) ** 2).mean()"
    ),
    "pitch": Expected(
        "asin", "forward", "", DOMAIN, "return ((torch.asin(2 * (w * j - k * i)) + self.offset -"
    ),
    "gamma_correction": Expected(
        "PowBackward0", "backward", "", SLOPE, "return ((light ** (1 / 2.2) - y) ** 2).mean()"
    ),
    "batch_norm_by_hand": Expected(
        "var", "forward", "", EMPTY, "return (h - h.mean(0)) / torch.sqrt(h.var(0))"
    ),
    "standardized": Expected("div", "forward", "", DIVISION, "return (h - h.mean(0)) / h.std(0)"),
    "root_mean_square": Expected(
        "rsqrt", "forward", "", DIVISION, "return h * torch.rsqrt((h * h).mean(-1, keepdim=True))"
    ),
    "moment_std": Expected(
        "div", "forward", "", DIVISION, "return (h - mean) / ((h**2).mean(-1, keepdim=True) - mea"
    ),
    "layer_norm_by_hand": Expected(
        "std", "forward", "", EMPTY, "flat = (series - series.mean(-1, keepdim=True)) / (serie"
    ),
    "poisoned_batch_norm": Expected(
        "native_batch_norm",
        "forward",
        "norm",
        INPUT,
        "loss = F.cross_entropy(self.head(self.norm(x)), y)",
    ),
    "attention_by_hand": Expected(
        "_softmax",
        "forward",
        "",
        MASKED,
        "weights = F.softmax(score.masked_fill(padding[:, None], ",
    ),
    "attention": Expected(
        "_softmax",
        "forward",
        "attention",
        MASKED,
        "h, _ = self.attention(x, x, x, key_padding_mask=padding,",
    ),
    "attention_pooling": Expected(
        "_log_softmax", "forward", "", MASKED, "weights = torch.log_softmax(score, dim=-1).exp()"
    ),
    "smooth_maximum": Expected(
        "LogsumexpBackward0",
        "backward",
        "",
        MASKED,
        "return torch.logsumexp(self.inner(x) + bias[..., None], ",
    ),
    "maximum_then_gelu": Expected("gelu", "forward", "", UNDEFINED, "return F.gelu(h.amax(1))"),
    "half_log_of_softmax": Expected(
        "log", "forward", "", LOG, "return -torch.log(p + 1e-8).gather(1, y[:, None]).mean()"
    ),
    "half_cross_entropy_by_hand": Expected(
        "log", "forward", "", LOG, "return -(e / e.sum(-1, keepdim=True)).gather(1, y[:, Non"
    ),
    "half_squared_error": Expected(
        "pow", "forward", "", HALF_OVERFLOW, "return ((self.net(x) - y) ** 2).mean()"
    ),
    "half_unit_vector": Expected(
        "div", "forward", "", DIVISION, "return F.cross_entropy(4 * e / (e.norm(dim=-1, keepdim=T"
    ),
    "half_normalize": Expected(
        "div", "forward", "", DIVISION, "return F.cross_entropy(4 * F.normalize(self.net(x), dim="
    ),
    "half_cosine": Expected(
        "div", "forward", "", DIVISION, "return ((F.cosine_similarity(self.net(a), self.net(b)) -"
    ),
    "half_standardized": Expected(
        "div", "forward", "", DIVISION, "x = (x - x.mean(0)) / torch.sqrt(x.var(0) + 1e-8)"
    ),
    "half_binary_cross_entropy": Expected(
        "BinaryCrossEntropyBackward0",
        "backward",
        "",
        HALF_OVERFLOW,
        "return F.binary_cross_entropy(torch.sigmoid(self.net(x))",
    ),
    "brain_discriminator": Expected(
        "log", "forward", "", LOG, "return -(torch.log(d_real) + torch.log(1 - d_fake)).mean"
    ),
    "brain_angle": Expected(
        "AcosBackward0", "backward", "", SLOPE, "return ((torch.acos(cosine) - wanted) ** 2).mean()"
    ),
    "brain_moment_std": Expected(
        "sqrt", "forward", "", SQRT, "deviation = torch.sqrt((x * x).mean(0) - x.mean(0) ** 2)"
    ),
}
