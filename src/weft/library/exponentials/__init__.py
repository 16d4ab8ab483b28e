"""Sums of exponentials by products of matrices, on the CPU."""
