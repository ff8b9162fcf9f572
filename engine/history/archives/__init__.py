"""Archives: runs, trials and comparisons as one ZIP file of Parquet tables, exported and imported."""
