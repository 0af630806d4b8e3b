"""Tasks whose answers are programs, and the sandbox that runs them."""
