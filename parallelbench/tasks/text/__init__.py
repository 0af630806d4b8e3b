"""Tasks whose answers are sentences, and the measures that score them."""
