"""Pictures in prompts: how they are read, what a backbone with a vision half is, and the model that sees them."""
