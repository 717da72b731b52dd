"""Text for people, made of values (pure): failure reports, terminal output made safe, words for numbers."""
