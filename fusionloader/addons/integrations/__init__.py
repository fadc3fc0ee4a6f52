"""FusionLoader in other frameworks. Each module imports its framework; none imports these."""
