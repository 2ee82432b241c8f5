"""A sum of squares that overflows float16, and what finite_clip makes of it."""

import torch

from safeops import finite_clip, safe_div, safe_sqrt

x = torch.tensor([300.0, 400.0, 0.0], dtype=torch.float16)
energy = (x * x).sum()
print("float16 sum of squares     ", energy.item())
print("finite_clip                ", finite_clip(energy).item())

# An infinite norm turns a vector into zeros without a word; a clipped one keeps its direction.
print("x / norm with torch        ", (x / torch.sqrt(energy)).tolist())
print("x / norm with safeops      ", safe_div(x, safe_sqrt(finite_clip(energy))).tolist())

# A NaN is not hidden unless that is asked for.
bad = torch.tensor([float("nan"), float("inf"), 1.0], dtype=torch.float16)
print("finite_clip of NaN, inf, 1 ", finite_clip(bad).tolist())
print("the same with nan=0        ", finite_clip(bad, nan=0.0).tolist())
