"""What is written for people: reports, pages, tables, sinks."""
