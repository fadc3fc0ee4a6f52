"""The commands of python -m fusionloader, one file each. May import everything."""
