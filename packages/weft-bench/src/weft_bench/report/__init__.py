"""What a benchmark run comes down to: figures, plots, pages, summaries."""
