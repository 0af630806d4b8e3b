"""How figures and pages look: one style, and where labels stand."""
