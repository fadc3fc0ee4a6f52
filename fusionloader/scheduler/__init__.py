"""Pure decisions, fed with events and clocks. Imports nothing else of the package."""
