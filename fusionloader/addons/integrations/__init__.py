"""FusionLoader in other frameworks; each module imports its framework, nothing imports these."""
