"""How speed is measured: workloads, contenders, protocol, report. Used by bench and benchmarks/.

May import everything.
"""
