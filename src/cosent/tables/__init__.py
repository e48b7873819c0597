"""Tables of sentences that people have: txt, tsv, csv, jsonl, Parquet and xlsx, read and written as streams."""
