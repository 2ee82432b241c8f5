"""Prints the constants of exp.h: python csrc/scalar/exp_polynomial.py (needs mpmath; seconds).

exp(r) = 1 + r + r**2 P(r) for |r| <= ln(2) / 2, P the minimax polynomial of the error relative to
exp(r), by Remez' exchange of extrema.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import cos, exp, ldexp, log, lu_solve, matrix, mp, mpf, nint, pi

mp.prec = 200
REACH = log(2) / 2 * mpf("1.0001")
FORMATS = {"float": (24, 5), "double": (53, 9)}  # bits, degree of P
POINTS = [REACH * (mpf(k) / 1000 - 1) for k in range(2001)]
Function = Callable[[mpf], mpf]


def target(r: mpf) -> mpf:
    return (exp(r) - 1 - r) / r**2 if abs(r) > mpf(2) ** -50 else mpf(1) / 2 + r / 6


def weight(r: mpf) -> mpf:
    return r**2 / exp(r) + mpf(2) ** -100


def through(points: list[mpf]) -> list[mpf]:
    """The polynomial whose weighted error alternates in sign and is of one size at the points."""
    n = len(points)
    system = matrix(n, n)
    for i, x in enumerate(points):
        for power in range(n - 1):
            system[i, power] = x**power
        system[i, n - 1] = (-1) ** i / weight(x)
    return list(lu_solve(system, matrix([target(x) for x in points])))[: n - 1]


def error(coefficients: list[mpf], r: mpf) -> mpf:
    return (mp.polyval(coefficients[::-1], r) - target(r)) * weight(r)


def extrema(coefficients: list[mpf]) -> list[mpf]:
    """Where the error is largest between its changes of sign."""
    found: list[tuple[mpf, mpf]] = []
    for point in POINTS:
        here = error(coefficients, point)
        if found and (here > 0) == (found[-1][1] > 0):
            found[-1] = max(found[-1], (point, here), key=lambda pair: abs(pair[1]))
        else:
            found.append((point, here))
    return [point for point, _ in found]


def minimax(degree: int) -> tuple[list[mpf], mpf]:
    count = degree + 2
    points = [-REACH * cos(pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    for _ in range(12):
        coefficients = through(points)
        found = extrema(coefficients)
        if len(found) < count:
            break
        points = found[:count]
    return coefficients, max(abs(error(coefficients, point)) for point in POINTS)


def rounded(x: mpf, bits: int) -> mpf:
    exponent = int(mp.floor(mp.log(abs(x), 2))) + 1
    return ldexp(nint(ldexp(x, bits - exponent)), exponent - bits)


def literal(x: mpf, kind: str) -> str:
    return f"{float(x).hex()}{'f' if kind == 'float' else ''}"


def main() -> None:
    for kind, (bits, degree) in FORMATS.items():
        coefficients, worst = minimax(degree)
        high = rounded(log(2), bits)
        print(f"// {kind}: P is off by at most 2**{float(log(worst, 2)):.1f}")
        print("log2_e", literal(rounded(1 / log(2), bits), kind))
        print("ln2_high", literal(high, kind))
        print("ln2_low", literal(rounded(log(2) - high, bits), kind))
        print("P", ", ".join(literal(rounded(c, bits), kind) for c in coefficients[::-1]))


if __name__ == "__main__":
    main()
