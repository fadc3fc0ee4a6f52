"""Predictions of epochs: what is asked, the model of a training, and how large a cache is to be."""
