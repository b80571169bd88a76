"""The fuzz targets for a moment each, with other inputs each time. For longer: run.py."""

from __future__ import annotations

import pytest
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, settings

EXAMPLES = 200


@pytest.mark.parametrize("name", TARGETS)
def test_a_moment_of_fuzzing(name):
    short = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    short(TARGETS[name])()
