"""The live status on a terminal: a few lines below the scrolling output."""
