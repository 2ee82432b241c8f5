"""The rows of the ops without a kernel: fields are explained in cases.py.

Values have torch's own bits; value_ulp is the bound that torch's op itself holds against the exact
result, as measured. Wide are logit, which cancels near 1/2, logaddexp where the result is near 0,
and the gradients of pow to x and of logaddexp, since p - 1 and y - x are rounded: by |log x| / 2
and |y - x| / 2.
"""

from tests.cases import OPS
from tests.kernelless_binary import BINARY
from tests.kernelless_unary import POWERS, UNARY

KERNELLESS = (*UNARY, *POWERS, *BINARY)
EVERY_OP = (*OPS, *KERNELLESS)
NAMED = {op.name: op for op in EVERY_OP}
