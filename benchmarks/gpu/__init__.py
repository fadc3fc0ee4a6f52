"""The first hours on a device: four runs of less than ten minutes, and what they do."""
