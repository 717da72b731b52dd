"""Files that are replaced whole, and temporary folders that no killed process leaves behind."""
