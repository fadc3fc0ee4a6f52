"""A plan on a device: DALI decodes, one kernel or DALI's operators augment."""
