"""MobileBERT."""
