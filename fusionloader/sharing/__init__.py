"""Who else takes part in a loader's work: a pool, ranks, jobs and other machines."""
