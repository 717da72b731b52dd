"""The page to look at a job: what is on it, the document, and who serves it to browsers."""
