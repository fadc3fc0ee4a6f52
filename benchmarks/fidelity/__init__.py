"""How far native pixels are from torchvision's: the figures of docs/how/fidelity.md."""
