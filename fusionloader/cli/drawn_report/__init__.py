"""The report of a timeline: what it says about a training, as one page that needs no network."""
