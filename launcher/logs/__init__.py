"""Worker logs, the console, launcher.log and events.jsonl, and the process that writes them."""
