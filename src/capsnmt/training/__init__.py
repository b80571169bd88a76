"""One training loop for all systems: loss, schedule, loop, checkpoints."""
