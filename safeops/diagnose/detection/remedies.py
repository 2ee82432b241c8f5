"""What prevents it: the call in safeops, or what to do."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from . import causes
from .causes import plain_name

_GENERAL = {
    causes.OVERFLOW: "scale what goes in, lower the learning rate, or safeops.clip_grad_norm_",
    causes.HALF_OVERFLOW: "keep this module in float32 or bfloat16: "
    "safeops.diagnose.bisect_autocast names the set",
    causes.EXPLODING: "safeops.clip_grad_norm_(parameters, max_norm), or a lower learning rate",
    causes.EMPTY: "leave out batches without elements",
    causes.SINGULAR: "add a small multiple of the identity to the matrix",
    causes.UNDEFINED: "keep infinities out of products and differences: mask with torch.where",
    causes.BROKEN: "look at the formula of this backward, and at what went in",
    causes.INPUT: "clean the data: safeops.diagnose.audit(model, batch=batch) says where",
    causes.WEIGHT: "load or initialise it again; safeops.diagnose.audit(model) lists all",
    causes.STATE: "make the optimizer again; safeops.diagnose.audit(model, optimizer) lists all",
    causes.GRADIENT: "look at the hooks on it, at what was given to backward(), and at .grad: "
    "optimizer.zero_grad() before each backward",
    causes.RANK: "see the report of the other ranks",
    causes.CONSTANT: "write a finite number; allow=(op,) if it is meant",
    causes.MEMORY: "fill what torch.empty gives before it is read",
}
_WITH_AN_OP = {causes.OVERFLOW, causes.EMPTY, causes.UNDEFINED}
_IN_A_STEP = {causes.DIVISION: "give the optimizer an eps, such as eps=1e-8"}
_SIGNS = {"div": "/", "pow": "**"}
# Functions of torch that run several operations without a frame of Python.
_COMPOSITES = {
    *("cosine_similarity", "cosine_embedding_loss", "pairwise_distance", "triplet_margin_loss"),
    *("kl_div", "poisson_nll_loss", "binary_cross_entropy_with_logits", "cdist"),
}


def remedy_of(
    op: str, cause: str, direction: str, line: str, within: Sequence[str], inside: bool
) -> str:
    """The safe equivalent of the function that was called, or of the operation; else what to do.

    within: the names of torch's functions that ran it, the outermost last. inside: of the model.
    """
    general = _GENERAL.get(cause)
    if direction == "optimizer":
        return _IN_A_STEP.get(cause) or general or _GENERAL[causes.OVERFLOW]
    name = _safe_name(plain_name(op), line, within)
    if name is None or (general and cause not in _WITH_AN_OP):
        return general or "keep its input away from there: torch.clamp, or torch.where before it"
    everywhere = "safeops.swap_(model)" if inside else "with safeops.safe_mode():"
    if cause == causes.OVERFLOW:
        return f"{general}; {name} saturates instead"
    advice = f"{name} in its place, or {everywhere}"
    return f"{advice}; else {general}" if general else advice


def _safe_name(op: str, line: str, within: Sequence[str]) -> str | None:
    """Of the function of torch's that ran it; of the operation, if it is in the line; of a function
    in the line that is made of several operations."""
    names, called = _safe_names(), re.findall(r"(\w+)\(", line)
    alone = op in called or _SIGNS.get(op, "\n") in line
    wanted = [*reversed(within), *([] if alone else _COMPOSITES.intersection(called)), op]
    return next((names[name] for name in wanted if name in names), None)


@functools.cache
def _safe_names() -> dict[str, str]:
    """The last words of torch's names, and what safeops has for them, by its shortest name."""
    from ...swap.table import replaced_functions

    names: dict[str, str] = {}
    for plain, safe in sorted(replaced_functions().items(), key=lambda pair: -len(pair[1])):
        names[plain.split(".")[-1]] = safe
    names["linalg_vector_norm"] = names["vector_norm"]
    return {name: safe for name, safe in names.items() if not name.startswith("__")}
