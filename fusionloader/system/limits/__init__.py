"""What the system allows this process: by its control groups, its limits, the machine."""
