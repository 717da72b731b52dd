"""Worker logs, the console, launcher.log and events.jsonl, and the two processes that write them."""
