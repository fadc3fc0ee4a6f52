"""Settings of all property tests."""

from hypothesis import HealthCheck, settings

# How long an example takes, or takes to make, says how busy the machine is.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
