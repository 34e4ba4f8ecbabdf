"""Who runs next. Pure Python: no threads, files, environment or clock; time is passed in. Knows no MLX and no text."""
