"""Parts of a report that its Markdown and its page share."""
