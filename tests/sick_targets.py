"""Sick programs: targets and policies with probabilities of 0 and 1."""

import torch
import torch.nn.functional as F

from tests.sick import BAD, ROWS, Net, Sick, changed, cycle, features, labels, scores


class Distillation(Net):
    """The divergence from a teacher's probabilities."""

    def forward(self, batch):
        x, teacher = batch
        log_q = F.log_softmax(self.net(x), dim=-1)
        return (teacher * (teacher.log() - log_q)).sum(-1).mean()


class MaskedDistillation(Net):
    def forward(self, batch):
        x, teacher, allowed = batch
        log_q = self.net(x).masked_fill(~allowed, -torch.inf).log_softmax(dim=-1)
        return F.kl_div(log_q, teacher, reduction="batchmean")


class LogitMatching(Net):
    def forward(self, batch):
        x, teacher = batch
        return ((self.net(x).squeeze(-1) - torch.logit(teacher)) ** 2).mean()


class EntropyBonus(Net):
    """A policy that may not take every action."""

    def forward(self, batch):
        x, action, allowed = batch
        logits = self.net(x).masked_fill(~allowed, -torch.inf)
        p = torch.softmax(logits, dim=-1)
        entropy = -(p * torch.log(p)).sum(-1)
        return (F.cross_entropy(logits, action) - 0.01 * entropy).mean()


class PolicyGradient(Net):
    """Replayed actions, one of which is no longer allowed."""

    def forward(self, batch):
        x, action, allowed = batch
        p = torch.softmax(self.net(x).masked_fill(~allowed, -1e9), dim=-1)
        return -p.gather(1, action[:, None]).log().mean()


class Advantages(Net):
    """Episodes of any length, one of a single step."""

    def forward(self, batch):
        x, rewards = batch
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        error = (self.net(x).squeeze(-1) - rewards) ** 2
        return (error * torch.exp(0.1 * advantage)).mean()


ordered = features()
target = scores(ordered, 1)
everything = torch.ones(ROWS, 3, dtype=torch.bool)
one_hot = F.one_hot(labels(ordered), 3).float()
soft = 0.9 * one_hot + 0.1 / 3
without_last = changed(everything, (BAD, 2), False)

PROGRAMS = (
    Sick(
        "kl_by_hand",
        "t * (log(t) - log(q)) of a target that is 0",
        Distillation,
        cycle(ordered, changed(soft, BAD, one_hot[BAD])),
        cured_by=("safe_log",),
    ),
    Sick(
        "kl_div",
        "kl_div of a masked class: 0 * -inf",
        MaskedDistillation,
        cycle(ordered, changed(soft, BAD, [0.5, 0.5, 0.0]), without_last),
        cured_by=("nn.functional.kl_div",),
    ),
    Sick(
        "logit_of_certainty",
        "logit(p) of a teacher that says 1.0",
        lambda: LogitMatching(outputs=1),
        cycle(ordered, changed(target.sigmoid().squeeze(-1), BAD, 1.0)),
        cured_by=("safe_logit",),
    ),
    Sick(
        "entropy_bonus",
        "-(p * log(p)).sum() with an action that is masked: 0 * log(0)",
        EntropyBonus,
        cycle(ordered, changed(labels(ordered), BAD, 0), without_last),
        cured_by=("safe_log",),
    ),
    Sick(
        "policy_gradient",
        "log(p) of an action of probability 0",
        PolicyGradient,
        cycle(ordered, changed(labels(ordered), BAD, 2), without_last),
        cured_by=("safe_log",),
    ),
    Sick(
        "advantages",
        "(a - a.mean()) / (a.std() + 1e-8) of one step",
        lambda: Advantages(outputs=1),
        cycle(ordered[:497], target[:497].squeeze(-1)),
        cured_by=("std",),
    ),
)
