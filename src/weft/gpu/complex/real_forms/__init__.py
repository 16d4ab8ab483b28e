"""Complex contractions made of real ones, or of the vendor's complex product."""
