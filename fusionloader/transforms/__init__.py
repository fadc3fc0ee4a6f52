"""What is done to a sample: plans, their executors, decoders and policies."""
