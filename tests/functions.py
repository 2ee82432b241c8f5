"""All functions that are not elementwise."""

from tests.function_cases_losses import LOSSES
from tests.function_cases_norms import NORMS
from tests.function_cases_reductions import REDUCTIONS

FUNCTIONS = REDUCTIONS + LOSSES + NORMS
