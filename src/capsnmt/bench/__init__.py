"""Benchmarks: every system side by side in one run; docs/BENCHMARKS.md is the protocol. Nothing here imports torch."""
