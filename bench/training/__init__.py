"""Steps of training beside PyTorch: python -m bench.training"""
