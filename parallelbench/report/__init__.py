"""What is written for people: reports, pages, tables, studies, sinks."""
