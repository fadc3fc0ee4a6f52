"""One loader's mini-batches: how it is served, from publication to delivery."""
