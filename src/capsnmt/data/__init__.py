"""From parallel text files to batches: corpus, store, prepare, batches, and a demo corpus. No torch."""
