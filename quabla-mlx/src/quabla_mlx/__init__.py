"""The MLX backend of Quabla: Programs become graphs of MLX."""
