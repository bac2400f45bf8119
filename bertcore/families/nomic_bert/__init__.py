"""NomicBERT; family.py registers it."""
