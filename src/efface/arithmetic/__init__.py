"""In which arithmetic a core computes: a form in integers, the same bits everywhere, or float32."""
