"""One loader's mini-batches, from publication to delivery."""
