"""What a billion sentences cost, computed from what one was measured to cost: the table of docs/scale.md."""

import statistics

from cosent.reporting.document import markdown_table
from cosent.run_record import shortened

BILLION = 10**9
CORES = 64  # of a machine
GB = 10**9
PQ_BYTES = 64  # of a vector in faiss IVFPQ with 64 subquantizers of 8 bits, next to its 8-byte number
HNSW_LINKS = 32  # of a vector in faiss HNSW, 4 bytes each, twice as many in the lowest layer


def scale_table(result: dict) -> str:
    """Core hours, disk and memory for 10^9 sentences, from the figures of `benchmarks.scale`."""
    each = statistics.median(result["encode_seconds"]) / result["sentences"]
    read, dim = result["read_seconds"] / result["sentences"], result["dim"]
    hours = BILLION * each / 3600
    ivfpq, hnsw = BILLION * (PQ_BYTES + 8), BILLION * (4 * dim + 2 * HNSW_LINKS * 4)
    rows = [
        ["encoding", f"{1 / each:,.0f} sentences/s per core", f"{hours:,.0f} core hours"],
        [f"on one machine of {CORES} cores", "", f"{hours / CORES:,.1f} hours, if cores scale"],
        ["of it reading Parquet", f"{1 / read:,.0f} rows/s per core", f"{BILLION * read / 3600:,.1f} core hours"],
        ["disk, float32", f"{result['bytes_per_sentence']:,.0f} bytes each", f"{BILLION * 4 * dim / GB:,.0f} GB"],
        ["disk, float16 (converted by yourself)", f"{2 * dim:,} bytes each", f"{BILLION * 2 * dim / GB:,.0f} GB"],
        ["exact search", "all vectors read for each batch of queries", f"{BILLION * 4 * dim / GB:,.0f} GB read"],
        [f"RAM, faiss IVFPQ of {PQ_BYTES} bytes", f"{PQ_BYTES} + 8 bytes each", f"{ivfpq / GB:,.0f} GB"],
        [f"RAM, faiss HNSW of {HNSW_LINKS} links", f"{4 * dim} + {8 * HNSW_LINKS} bytes each", f"{hnsw / GB:,.0f} GB"],
    ]
    measured = (
        f"`{result['model']}`, {result['sentences']:,} distinct sentences of {result['corpus'].upper()} of "
        f"{result['characters']:.1f} characters, seconds of processor time of one thread, median of "
        f"{len(result['encode_seconds'])} turns; the process took {result['peak_mib']:.0f} MiB"
    )
    return (
        f"{markdown_table(['', 'each', '10^9 sentences'], rows)}\n\n"
        "Encoding, reading and the bytes of a float32 vector are measured, the rest is arithmetic. "
        f"{measured}; {result['device']} with a load average of {result['load_average']:.0f}, commit "
        f"{shortened(result['commit'])}."
    )
