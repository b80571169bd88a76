"""What is made of trained models: suites of runs, their tables, and pictures of what capsules take."""
