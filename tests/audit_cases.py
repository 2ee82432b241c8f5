"""For each kind of finding, planted faults and healthy twins, as audit's arguments."""

from tests import audit_cases_batch, audit_cases_forward, audit_cases_settings, audit_cases_weights

CASES = [
    *audit_cases_weights.CASES,
    *audit_cases_batch.CASES,
    *audit_cases_settings.CASES,
    *audit_cases_forward.CASES,
]
