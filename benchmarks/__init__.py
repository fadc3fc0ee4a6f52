"""Studies of speed and memory, one file each; fusionloader.cli.measure does the measuring."""
