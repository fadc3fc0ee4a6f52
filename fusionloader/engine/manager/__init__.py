"""The local manager: mini-batches in flight, from publication to delivery."""
