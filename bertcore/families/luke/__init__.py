"""LUKE."""
