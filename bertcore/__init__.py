"""bertcore: the BERT family without PyTorch."""
