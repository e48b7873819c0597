"""Finding sentences: an index that is searched, reranking, near-duplicates and groups."""
