def make_executor(plan): raise RuntimeError
