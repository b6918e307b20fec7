"""The papers' convergence bounds on the clients of a run: constants estimated along recorded rounds, and premises.

`probe.py` repeats a client's round and estimates the constants, `premises.py` lists what a run breaks, `of_*.py` put
them into the bounds of one paper, and `monitor.py` does it during a run. The formulas are in `protofed.theory`. This
package may import what `experiment` may import.
"""
