"""Prints the constants of log.h: python csrc/scalar/log_table.py (needs mpmath; a minute).

log x = k ln 2 + T[i] + log1p(r), where x = m 2**k with 3/4 <= m < 3/2, i is the top four bits of
m's mantissa and r = m c[i] - 1. T[i] = -log c[i] has so few bits that k ln2_high + T[i] is exact,
and among all such T near the middle of the interval it is the one whose c = exp(-T) comes nearest
to a floating-point number, so that rounding c costs nothing.
"""

from __future__ import annotations

from mpmath import chebyfit, exp, floor, frexp, ldexp, log, log1p, mp, mpf

mp.prec = 200
FORMATS = {"float": (24, 13, 17, 3), "double": (53, 33, 40, 9)}  # bits, of ln 2, of T, degree
REACH = mpf(1) / 128


def rounded(x: mpf, bits: int) -> mpf:
    _, exponent = frexp(x)
    return ldexp(floor(ldexp(x, bits - exponent) + mpf(1) / 2), exponent - bits)


def interval(i: int) -> tuple[mpf, mpf]:
    scale = mpf(1) if i < 8 else mpf(1) / 2
    return scale * (1 + mpf(i) / 16), scale * (1 + mpf(i + 1) / 16)


def entry(i: int, bits: int, grid: int) -> tuple[mpf, mpf]:
    """(c, T) of one interval; exactly (1, 0) on both sides of 1."""
    if i in (0, 15):
        return mpf(1), mpf(0)
    low, high = interval(i)
    middle = int(floor(ldexp(log((low + high) / 2), grid)))
    reach = min(int(ldexp(REACH, grid)), 20000)
    best = min(
        (mpf(t) / 2**grid for t in range(middle - reach, middle + reach)),
        key=lambda t: abs(rounded(exp(-t), bits) / exp(-t) - 1),
    )
    return rounded(exp(-best), bits), best


def reduced(table: list[tuple[mpf, mpf]]) -> tuple[mpf, mpf]:
    ends = [m * c - 1 for i, (c, _) in enumerate(table) for m in interval(i)]
    return min(ends), max(ends)


def polynomial(low: mpf, high: mpf, degree: int) -> tuple[list[mpf], mpf]:
    """Q with log1p(r) = r + r**2 Q(r); highest power first, and the error relative to log1p."""

    def q(r: mpf) -> mpf:
        r = r if abs(r) > mpf(2) ** -80 else mpf(2) ** -80
        return (log1p(r) - r) / r**2

    coefficients = chebyfit(q, [low, high], degree + 1)
    points = [low + (high - low) * k / 400 for k in range(401)]
    error = max(
        abs(mp.polyval(coefficients, r) - q(r)) * r**2 / abs(log1p(r))
        for r in points
        if abs(r) > 1e-9
    )
    return coefficients, error


def literal(x: mpf, kind: str) -> str:
    return f"{float(x).hex()}{'f' if kind == 'float' else ''}"


def main() -> None:
    for kind, (bits, ln2_bits, grid, degree) in FORMATS.items():
        table = [entry(i, bits, grid) for i in range(16)]
        worst = max(abs(c * exp(t) - 1) for c, t in table)
        low, high = reduced(table)
        coefficients, error = polynomial(low, high, degree)
        ln2_high = ldexp(floor(ldexp(log(2), ln2_bits)), -ln2_bits)
        print(f"// {kind}: T is off by at most 2**{float(log(worst, 2)):.1f},", end=" ")
        print(f"r in [{float(low):.4f}, {float(high):.4f}], Q by 2**{float(log(error, 2)):.1f}")
        print("ln2_high", literal(ln2_high, kind))
        print("ln2_low", literal(rounded(log(2) - ln2_high, bits), kind))
        print("c", ", ".join(literal(rounded(c, bits), kind) for c, _ in table))
        print("T", ", ".join(literal(t, kind) for _, t in table))
        print("Q", ", ".join(literal(rounded(q, bits), kind) for q in coefficients))


if __name__ == "__main__":
    main()
