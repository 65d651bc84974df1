"""Many runs: comparisons, sweeps, scores and probes."""
