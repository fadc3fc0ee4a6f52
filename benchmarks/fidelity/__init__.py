"""How far native pixels are from torchvision's: the figures of docs/fidelity.md."""
