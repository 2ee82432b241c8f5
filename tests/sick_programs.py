"""Programs that train into NaN, and do not once their ops are swapped."""

from tests import (
    sick_angles,
    sick_attention,
    sick_densities,
    sick_distances,
    sick_half,
    sick_norms,
    sick_probabilities,
    sick_selections,
    sick_targets,
)

PROGRAMS = (
    *sick_probabilities.PROGRAMS,
    *sick_selections.PROGRAMS,
    *sick_targets.PROGRAMS,
    *sick_densities.PROGRAMS,
    *sick_distances.PROGRAMS,
    *sick_angles.PROGRAMS,
    *sick_norms.PROGRAMS,
    *sick_attention.PROGRAMS,
    *sick_half.PROGRAMS,
)
