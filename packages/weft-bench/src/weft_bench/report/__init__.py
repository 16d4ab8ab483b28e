"""The results of a benchmark run: figures, plots, pages, summaries."""
