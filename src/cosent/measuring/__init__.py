"""What `evaluate` measures with: rows of a corpus or a file, thresholds, tables of results, tasks of mteb."""
