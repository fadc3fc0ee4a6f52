"""Workers that the ranks of a machine share: the global manager, and a rank's side of it."""
