"""Every implementation of every operation against the NumPy reference in float64, over one table of cases."""
