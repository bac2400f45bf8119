"""Matrix products on the tiles of Intel's AMX.

permission.py asks Linux for them, tiles.py has their instructions and an emulation for CPUs without AMX, and product.py
multiplies rows with packed weights. attention/cpu/products.py uses the tiles as well.
"""
