"""The heads: what turns an encoder's hidden states into a task's outputs."""
