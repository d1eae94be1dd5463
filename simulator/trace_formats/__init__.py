"""One file per family of trace formats; `dtgym.simulator.traces` is the door."""
