"""A discrete-event simulator over scheduler/. May import scheduler alone; cli/sim.py runs it."""
